#include "tools/cli/chat_turn.h"

#include <atomic>
#include <boost/json.hpp>
#include <cstdio>

#include "common/base/utf8.h"
#include "tools/bench/completion_stream.h"

namespace tandem::cli {
namespace {

namespace json = boost::json;

std::string body_of(const TurnOptions& options, std::optional<uint32_t> max_tokens,
                    const json::array& messages) {
  json::object body{{"model", options.model},
                    {"messages", messages},
                    {"stream", true},
                    {"stream_options", json::object{{"include_usage", true}}}};
  if (max_tokens) body["max_tokens"] = *max_tokens;
  if (options.temperature) body["temperature"] = *options.temperature;
  if (options.top_p) body["top_p"] = *options.top_p;
  return json::serialize(body);
}

// Prints text as it comes, on the connection's thread.
class Printer {
 public:
  void print(std::string_view piece) {
    text_ += piece;
    const bool written = std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size();
    if (std::fflush(stdout) != 0 || !written) lost_ = true;
  }
  [[nodiscard]] bool lost() const { return lost_; }  // any thread
  [[nodiscard]] std::string& text() { return text_; }

 private:
  std::string text_;
  std::atomic<bool> lost_{false};
};

}  // namespace

void choose_sampling(const json::object& model, TurnOptions& options) {
  if (options.temperature) return;
  const json::value* said = model.if_contains("chat_sampling_params");
  const json::object* suggested = said != nullptr ? said->if_object() : nullptr;
  if (suggested == nullptr) return;
  const auto take = [suggested](std::string_view key, std::optional<double>& into) {
    const json::value* value = suggested->if_contains(key);
    if (!into && value != nullptr && value->is_number()) into = value->to_number<double>();
  };
  take("temperature", options.temperature);
  take("top_p", options.top_p);
}

Result<Answer> ask(client::HttpFetcher& fetcher, const TurnOptions& options,
                   const json::array& messages, const Clock& clock,
                   const std::function<bool()>& cancelled) {
  std::string text = body_of(options, options.max_tokens.value_or(kChatMaxTokens), messages);
  if (!is_valid_utf8(text)) return fail(ErrorCode::kInvalidArgument, "this text is not UTF-8");
  Answer answer;
  bench::CompletionStream stream;
  Printer printer;
  stream.on_text([&](std::string_view piece) { printer.print(piece); });
  const TimePoint begin = clock.now();
  const auto post = [&](std::string body) {
    return fetcher.post_json(
        "/v1/chat/completions", std::move(body),
        [&](std::string_view bytes) {
          if (stream.feed(bytes) == 0) return;
          answer.last = to_seconds(clock.now() - begin);
          if (answer.ttft == 0) answer.ttft = answer.last;
        },
        [&] { return printer.lost() || cancelled(); });
  };
  auto result = post(std::move(text));
  // Our own bound is too much for a context that is nearly full; the server knows what is left.
  if (result && result->status == 400 && !options.max_tokens &&
      client::server_message(result->body).find("max_tokens") != std::string::npos) {
    result = post(body_of(options, {}, messages));
  }
  if (!printer.text().empty()) std::printf("\n");
  if (!result) return fail(std::move(result).error());
  if (result->status != 200) return fail(client::refusal("/v1/chat/completions", *result));
  if (!stream.error().empty()) return fail(ErrorCode::kUnavailable, stream.error());
  if (!stream.done())
    return fail(ErrorCode::kUnavailable, "the answer ended without [DONE]: it is not whole");
  answer.text = std::move(printer.text());
  answer.seconds = to_seconds(clock.now() - begin);
  answer.prompt_tokens = stream.prompt_tokens();
  answer.output_tokens = stream.output_tokens();
  return answer;
}

}  // namespace tandem::cli
