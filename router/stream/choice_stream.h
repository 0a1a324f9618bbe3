#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/incremental_detokenizer.h"
#include "router/api/render.h"
#include "router/dispatch/types.h"
#include "router/stream/stop_matcher.h"

namespace tandem::text {
class Tokenizer;
}

namespace tandem::router {

struct StreamOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool logprobs = false;
  uint32_t text_offset = 0;  // characters before the answer (an echoed prompt)
};

// What has become certain of an answer: text in whole characters, never part of a stop string, and
// the log-probabilities of the tokens whose text it completes.
struct StreamDelta {
  std::string text;
  std::vector<LogprobEntry> logprobs;
  std::optional<FinishKind> finish;
  [[nodiscard]] bool empty() const { return text.empty() && logprobs.empty() && !finish; }
};

// One choice on its way from tokens to text. Whether it is streamed or not, the joined deltas are
// the same. Belongs to one connection's thread.
class ChoiceStream {
 public:
  ChoiceStream(std::shared_ptr<const text::Tokenizer> tokenizer, StreamOptions options);

  // Appends to `delta`. After a stop string delta.finish is set and later tokens are ignored.
  void push(const AnswerToken& token, StreamDelta& delta);
  // The node has ended the answer.
  void finish(FinishKind kind, StreamDelta& delta);

  [[nodiscard]] bool ended() const { return ended_; }
  // Tokens that count as the answer: up to and including the one that completed a stop string.
  [[nodiscard]] uint32_t tokens() const { return tokens_; }

 private:
  struct Pending {
    LogprobEntry entry;
    size_t start;  // bytes of the decoded text before and after the token's own text
    size_t end;
  };
  void add_text(std::string_view piece, StreamDelta& delta);
  // Moves the entries whose text lies within the first `released_` bytes; at the end, those that
  // begin there.
  void release(StreamDelta& delta, bool at_end);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  text::IncrementalDetokenizer detokenizer_;
  StopMatcher stops_;
  const bool logprobs_;
  std::string piece_;    // scratch
  size_t decoded_ = 0;   // bytes that came out of the detokenizer
  size_t released_ = 0;  // bytes handed out
  uint32_t characters_;  // of the decoded text, for text_offset
  uint32_t tokens_ = 0;
  bool ended_ = false;
  std::deque<Pending> pending_;
};

// A prompt's tokens as log-probability entries: `scores` has one per token after the first.
[[nodiscard]] std::vector<LogprobEntry> prompt_entries(
    const std::shared_ptr<const text::Tokenizer>& tokenizer, std::span<const TokenId> prompt,
    std::span<const AnswerToken> scores);

// Characters (code points) of valid UTF-8.
[[nodiscard]] uint32_t count_characters(std::string_view text);

}  // namespace tandem::router
