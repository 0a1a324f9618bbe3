#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace tandem::router {

enum class Endpoint : uint8_t { kChat, kCompletion };
// Label of its metrics: "chat", "completions".
[[nodiscard]] std::string_view route_name(Endpoint endpoint);

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;
};

enum class FinishKind : uint8_t { kStop, kLength };
[[nodiscard]] std::string_view to_string(FinishKind kind);  // "stop", "length"

// A token as clients see it. `text` holds the token's own bytes, perhaps half a character.
struct LogprobEntry {
  std::string text;
  std::optional<float> logprob;                    // empty: the first token of a prompt has none
  std::vector<std::pair<std::string, float>> top;  // best first
  uint32_t text_offset = 0;  // in characters of the whole text; legacy completions only
};

// Everything that all answers of one HTTP request share.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  std::string fingerprint;
};

// Appends SSE events of one streamed answer. The constant part of a chunk is built once; a text
// chunk is three appends and the escaped text. Not thread-safe: belongs to one connection.
class ChunkRenderer {
 public:
  ChunkRenderer(const AnswerHead& head, bool usage_field);

  // Chat only: the first delta of a choice.
  void append_role(std::string& out, uint32_t index) const;
  // `logprobs` is null when the client wants none; its entries belong to this text.
  void append_text(std::string& out, uint32_t index, std::string_view text,
                   const std::vector<LogprobEntry>* logprobs) const;
  void append_finish(std::string& out, uint32_t index, FinishKind kind) const;
  // The extra chunk of stream_options.include_usage.
  void append_usage(std::string& out, const Usage& usage) const;

 private:
  Endpoint endpoint_;
  std::string prefix_;      // data: {…,"choices":[{"index":
  std::string tail_;        // ends a chunk after finish_reason's value
  std::string usage_head_;  // of the usage chunk
};

// data: [DONE]
void append_done(std::string& out);
// data: {"error":{…}}: ends a stream whose head has been sent.
void append_error_event(std::string& out, const Error& error);

struct ChoiceBody {
  uint32_t index = 0;
  std::string text;
  FinishKind finish = FinishKind::kStop;
  std::optional<std::vector<LogprobEntry>> logprobs;
};
[[nodiscard]] std::string render_answer(const AnswerHead& head, std::span<const ChoiceBody> choices,
                                        const Usage& usage);

// One entry of `logprobs.content` (chat), and the whole `logprobs` object in either shape.
void append_logprobs(std::string& out, Endpoint endpoint, std::span<const LogprobEntry> entries);

void append_usage_object(std::string& out, const Usage& usage);

}  // namespace tandem::router
