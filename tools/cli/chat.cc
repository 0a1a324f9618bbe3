#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/fd.h"
#include "tools/cli/chat_command.h"
#include "tools/cli/chat_turn.h"
#include "tools/cli/command.h"
#include "tools/cli/line_reader.h"
#include "tools/cli/status_text.h"
#include "tools/client/server_flags.h"
#include "tools/number_flag.h"

namespace tandem::cli {
namespace {

namespace json = boost::json;

struct ChatFlags {
  client::ServerFlags server;
  TurnOptions turn;
  std::string system, ask;
  bool stats = false;
};

// Where the handler writes: a descriptor of the guard that lives. Any thread may run the handler.
std::atomic<int> wake_writer = -1;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler reads it");

// While it lives, Ctrl-C ends an answer in work or the line being typed, not the program. The old
// handler comes back at the end. At most one at a time.
class InterruptGuard {
 public:
  static Result<std::unique_ptr<InterruptGuard>> create() {
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) {
      return fail(ErrorCode::kIo, std::string("no pipe for Ctrl-C: ") + std::strerror(errno));
    }
    return std::unique_ptr<InterruptGuard>(new InterruptGuard(Fd(ends[0]), Fd(ends[1])));
  }
  ~InterruptGuard() {
    ::sigaction(SIGINT, &before_, nullptr);
    wake_writer = -1;
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Whether it was pressed and has not had its effect yet. The pipe is the only memory of it, so
  // that who takes a press there, as the reader of lines does, leaves nothing of it behind.
  [[nodiscard]] bool pressed() const {
    pollfd waited{.fd = wake_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&waited, 1, 0) > 0;
  }
  void forget() const { drain(wake_fd()); }
  [[nodiscard]] int wake_fd() const { return reader_.get(); }

 private:
  InterruptGuard(Fd reader, Fd writer) : reader_(std::move(reader)), writer_(std::move(writer)) {
    wake_writer = writer_.get();
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    // A pipe, since the signal may come just before the wait for input or on another thread.
    action.sa_handler = [](int) {
      const int error = errno;
      [[maybe_unused]] const ssize_t sent = ::write(wake_writer, "!", 1);
      errno = error;
    };
    ::sigaction(SIGINT, &action, &before_);
  }

  const Fd reader_, writer_;
  struct sigaction before_ {};
};

std::optional<TransferTotals> read_transfers(client::HttpFetcher& fetcher) {
  const auto status = fetcher.get_object("/status");
  if (!status) return std::nullopt;
  return transfer_totals(*status);
}

void print_stats(const Answer& answer, const std::optional<TransferTotals>& before,
                 const std::optional<TransferTotals>& after) {
  const double gaps = answer.output_tokens > 1 ? answer.output_tokens - 1.0 : 1.0;
  std::printf("\n  time to first token  %.0f ms (%u prompt tokens)\n", answer.ttft * 1e3,
              answer.prompt_tokens);
  std::printf("  between tokens       %.1f ms (mean of %u tokens)\n",
              (answer.last - answer.ttft) / gaps * 1e3, answer.output_tokens);
  std::printf("  tokens per second    %.1f\n", answer.output_tokens / answer.seconds);
  if (!before || !after) return;
  const double raw = after->raw_bytes - before->raw_bytes;
  const double wire = after->wire_bytes - before->wire_bytes;
  if (raw > 0) {
    std::printf("  KV handed over       %s raw, %s on the wire (%.2f)\n", human_bytes(raw).c_str(),
                human_bytes(wire).c_str(), wire / raw);
  } else {
    std::printf(
        "  KV handed over       none: the prompt was short or known, decode prefilled it itself\n");
  }
  std::printf("  transport            %s\n", after->transport.c_str());
}

// The last transfer's size reaches the router just after the first token; a moment's patience.
std::optional<TransferTotals> settled_transfers(client::HttpFetcher& fetcher,
                                                const std::optional<TransferTotals>& before) {
  std::optional<TransferTotals> after;
  for (int attempt = 0; attempt < 10; ++attempt) {
    after = read_transfers(fetcher);
    if (!after || !before || after->count > before->count) break;
    ::usleep(50'000);
  }
  return after;
}

// A conversation with one model; `cancelled` ends an answer.
class Chat {
 public:
  Chat(client::HttpFetcher& fetcher, const ChatFlags& flags, TurnOptions turn, const Clock& clock,
       std::function<bool()> cancelled)
      : fetcher_(fetcher),
        flags_(flags),
        turn_(std::move(turn)),
        clock_(clock),
        cancelled_(std::move(cancelled)) {
    clear();
  }

  // On an error the question is forgotten.
  Status say(const std::string& text) {
    messages_.push_back(json::object{{"role", "user"}, {"content", text}});
    const auto before = flags_.stats ? read_transfers(fetcher_) : std::nullopt;
    auto answer = ask(fetcher_, turn_, messages_, clock_, cancelled_);
    if (!answer) {
      messages_.pop_back();
      return fail(std::move(answer).error());
    }
    messages_.push_back(json::object{{"role", "assistant"}, {"content", answer->text}});
    if (flags_.stats) print_stats(*answer, before, settled_transfers(fetcher_, before));
    return {};
  }

  void clear() {
    messages_.clear();
    if (flags_.system.empty()) return;
    messages_.push_back(json::object{{"role", "system"}, {"content", flags_.system}});
  }

 private:
  client::HttpFetcher& fetcher_;
  const ChatFlags& flags_;
  const TurnOptions turn_;
  const Clock& clock_;
  const std::function<bool()> cancelled_;
  json::array messages_;
};

tl::unexpected<Error> not_understood(const std::string& line, ChatLine kind) {
  const std::string word = line.substr(0, line.find_first_of(" \t"));
  return fail(ErrorCode::kInvalidArgument,
              kind == ChatLine::kUnknown
                  ? "unknown command " + word + "; /help lists them"
                  : word + " takes nothing after it; begin the line with a space to send it");
}

// Handles one line that is no text; whether to go on.
Result<bool> obey(const std::string& line, ChatLine kind, Chat& chat) {
  switch (kind) {
    case ChatLine::kHelp:
      std::fprintf(stderr, "%s", std::string(kChatHelp).c_str());
      return true;
    case ChatLine::kClear:
      chat.clear();
      std::fprintf(stderr, "The conversation is forgotten.\n");
      return true;
    case ChatLine::kQuit:
      return false;
    case ChatLine::kUnknown:
    case ChatLine::kTooMuch:
      return not_understood(line, kind);
    case ChatLine::kText:
    case ChatLine::kNothing:
      break;
  }
  return true;
}

// One line of a conversation: a question or a command; whether to go on.
Result<bool> take(const std::string& line, Chat& chat) {
  const ChatLine kind = classify(line);
  if (kind != ChatLine::kText) return obey(line, kind, chat);
  TANDEM_TRY(chat.say(line));
  return true;
}

// Lines of a file or a pipe: the first that fails ends it.
Status converse(Chat& chat) {
  LineReader lines(STDIN_FILENO, -1);
  std::string line;
  while (lines.read(line) == LineReader::Outcome::kLine) {
    TANDEM_ASSIGN(const bool more, take(line, chat));
    if (!more) break;
  }
  return {};
}

// With a person at a terminal: an error is told and the conversation goes on.
Status converse_at_terminal(Chat& chat, const InterruptGuard& guard) {
  LineReader lines(STDIN_FILENO, guard.wake_fd());
  std::string line;
  while (true) {
    std::fprintf(stderr, "> ");
    const LineReader::Outcome outcome = lines.read(line);
    if (outcome == LineReader::Outcome::kInterrupted) {
      std::fprintf(stderr, "\n(Ctrl-D or /quit leaves)\n");
      continue;
    }
    if (outcome == LineReader::Outcome::kEnd) break;
    const auto more = take(line, chat);
    guard.forget();
    if (more && !*more) return {};
    if (more) continue;
    if (std::ferror(stdout) != 0) return {};  // main() tells
    if (more.error().code == ErrorCode::kCancelled) {
      std::fprintf(stderr, "(stopped; this question and its answer are forgotten)\n");
    } else {
      std::fprintf(stderr, "tandem chat: %s\n", more.error().detail.c_str());
    }
  }
  std::fprintf(stderr, "\n");  // the shell's prompt gets a line of its own
  return {};
}

// The model that the flags name, or the first of the server, with what to ask of it.
Result<TurnOptions> choose_model(client::HttpFetcher& fetcher, const ChatFlags& flags) {
  TurnOptions turn = flags.turn;
  const bool decided = !turn.model.empty() && turn.temperature;
  if (decided) return turn;
  auto model = fetcher.model(turn.model);
  if (!model && turn.model.empty()) return fail(std::move(model).error());
  // A name that is not listed may still be served: the answer will tell.
  choose_sampling(model ? *model : json::object{}, turn);
  if (model && turn.model.empty()) turn.model = std::string(model->at("id").as_string());
  return turn;
}

Status chat(const ChatFlags& flags, const CommandContext& context) {
  TANDEM_ASSIGN(client::FetchOptions options,
                client::resolve_server(flags.server, context.environment));
  options.timeout = std::chrono::seconds(300);
  TANDEM_ASSIGN(auto fetcher, client::HttpFetcher::create(options));
  TANDEM_ASSIGN(const TurnOptions turn, choose_model(*fetcher, flags));
  const bool terminal = flags.ask.empty() && ::isatty(STDIN_FILENO) == 1;
  if (terminal) {
    std::fprintf(stderr, "%s at %s. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.\n",
                 turn.model.c_str(), options.url.c_str());
    TANDEM_ASSIGN(const auto guard, InterruptGuard::create());
    Chat chat(*fetcher, flags, turn, context.clock, [&] { return guard->pressed(); });
    return converse_at_terminal(chat, *guard);
  }
  Chat chat(*fetcher, flags, turn, context.clock, [] { return false; });
  const Status done = flags.ask.empty() ? converse(chat) : chat.say(flags.ask);
  // Standard output takes no more: main() tells, unless it is a reader that has had enough.
  if (!done && done.error().code == ErrorCode::kCancelled && std::ferror(stdout) != 0) return {};
  return done;
}

}  // namespace

void add_chat(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "talk to a running cluster");
  client::add_server_flags(*command, flags->server);
  command->add_option("--model", flags->turn.model, "default: the first that the server lists");
  command->add_option("--system", flags->system, "system message");
  command->add_option("--ask", flags->ask, "one question instead of a conversation");
  command->add_option("--max-tokens", flags->turn.max_tokens, "longest answer; default 512")
      ->check(whole(1, 1 << 24));
  command
      ->add_option("--temperature", flags->turn.temperature,
                   "0: always the likeliest token; default: what the server suggests for chats")
      ->check(between(0, 2));
  command
      ->add_option("--top-p", flags->turn.top_p,
                   "share of the likeliest tokens to draw from; default: likewise")
      ->check(between(0, 1));
  command->add_flag("--stats", flags->stats, "print latencies and KV sizes after each answer");
  command->callback(
      [flags, &context] { run(context, "chat", [&] { return chat(*flags, context); }); });
}

}  // namespace tandem::cli
