#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "common/base/utf8.h"
#include "tools/bench/completion_stream.h"
#include "tools/cli/command.h"
#include "tools/cli/status_text.h"
#include "tools/client/server_flags.h"
#include "tools/number_flag.h"

namespace tandem::cli {
namespace {

namespace json = boost::json;

struct ChatFlags {
  client::ServerFlags server;
  std::string model, system, ask;
  uint32_t max_tokens = 512;
  double temperature = -1;  // below 0: the server's own
  bool stats = false;
};

volatile sig_atomic_t interrupted = 0;

// Ctrl-C ends the answer in work, not the program. The old handler comes back at the end.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    ::sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() { ::sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ {};
};

struct Answer {
  std::string text;
  double ttft = 0;
  double seconds = 0;  // request to last byte
  double last = 0;     // request to last piece of text
  uint32_t prompt_tokens = 0, output_tokens = 0;
};

Result<Answer> ask(client::HttpFetcher& fetcher, const ChatFlags& flags, const std::string& model,
                   const json::array& messages, const Clock& clock) {
  json::object body{{"model", model},
                    {"messages", messages},
                    {"max_tokens", flags.max_tokens},
                    {"stream", true},
                    {"stream_options", json::object{{"include_usage", true}}}};
  if (flags.temperature >= 0) body["temperature"] = flags.temperature;
  const std::string text = json::serialize(body);
  if (!is_valid_utf8(text)) return fail(ErrorCode::kInvalidArgument, "this text is not UTF-8");
  const InterruptGuard guard;
  Answer answer;
  bench::CompletionStream stream;
  stream.on_text([&](std::string_view piece) {
    answer.text += piece;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  const TimePoint begin = clock.now();
  auto result = fetcher.post_json(
      "/v1/chat/completions", text,
      [&](std::string_view bytes) {
        if (stream.feed(bytes) == 0) return;
        answer.last = to_seconds(clock.now() - begin);
        if (answer.ttft == 0) answer.ttft = answer.last;
      },
      [] { return interrupted != 0; });
  if (!answer.text.empty()) std::printf("\n");
  if (!result) return fail(std::move(result).error());
  if (result->status != 200) return fail(client::refusal("/v1/chat/completions", *result));
  if (!stream.error().empty()) return fail(ErrorCode::kUnavailable, stream.error());
  if (!stream.done())
    return fail(ErrorCode::kUnavailable, "the answer ended without [DONE]: it is not whole");
  answer.seconds = to_seconds(clock.now() - begin);
  answer.prompt_tokens = stream.prompt_tokens();
  answer.output_tokens = stream.output_tokens();
  return answer;
}

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

Status one_turn(client::HttpFetcher& fetcher, const ChatFlags& flags, const std::string& model,
                json::array& messages, const Clock& clock) {
  const auto before = flags.stats ? read_transfers(fetcher) : std::nullopt;
  auto answer = ask(fetcher, flags, model, messages, clock);
  if (!answer) return fail(std::move(answer).error());
  messages.push_back(json::object{{"role", "assistant"}, {"content", answer->text}});
  if (flags.stats) print_stats(*answer, before, settled_transfers(fetcher, before));
  return {};
}

Status chat(const ChatFlags& flags, const CommandContext& context) {
  TANDEM_ASSIGN(client::FetchOptions options,
                client::resolve_server(flags.server, context.environment));
  options.timeout = std::chrono::seconds(300);
  TANDEM_ASSIGN(auto fetcher, client::HttpFetcher::create(options));
  std::string model = flags.model;
  if (model.empty()) {
    TANDEM_ASSIGN(model, fetcher->first_model());
  }
  json::array messages;
  if (!flags.system.empty()) {
    messages.push_back(json::object{{"role", "system"}, {"content", flags.system}});
  }
  const size_t opening = messages.size();
  if (!flags.ask.empty()) {
    messages.push_back(json::object{{"role", "user"}, {"content", flags.ask}});
    return one_turn(*fetcher, flags, model, messages, context.clock);
  }
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) {
    std::fprintf(
        stderr, "%s at %s. /new forgets the conversation, Ctrl-C stops an answer, Ctrl-D leaves.\n",
        model.c_str(), options.url.c_str());
  }
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/new") {
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(opening), messages.end());
      continue;
    }
    messages.push_back(json::object{{"role", "user"}, {"content", line}});
    const Status turn = one_turn(*fetcher, flags, model, messages, context.clock);
    if (turn) continue;
    messages.pop_back();
    if (turn.error().code != ErrorCode::kCancelled && !terminal) return turn;
    std::fprintf(stderr, "tandem chat: %s\n", turn.error().detail.c_str());
  }
  return {};
}

}  // namespace

void add_chat(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "talk to a running cluster");
  client::add_server_flags(*command, flags->server);
  command->add_option("--model", flags->model, "default: the first that the server lists");
  command->add_option("--system", flags->system, "system message");
  command->add_option("--ask", flags->ask, "one question instead of a conversation");
  command->add_option("--max-tokens", flags->max_tokens, "longest answer; default 512")
      ->check(whole(1, 1 << 24));
  command->add_option("--temperature", flags->temperature)->check(between(0, 2));
  command->add_flag("--stats", flags->stats, "print latencies and KV sizes after each answer");
  command->callback(
      [flags, &context] { run(context, "chat", [&] { return chat(*flags, context); }); });
}

}  // namespace tandem::cli
