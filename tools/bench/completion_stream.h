#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::bench {

// Reads the server-sent events of one streamed completion, fed in pieces of any size.
class CompletionStream {
 public:
  // Called with each piece of text, inside feed().
  void on_text(std::function<void(std::string_view)> callback) { on_text_ = std::move(callback); }

  // Returns how many events that carried text this piece completed.
  size_t feed(std::string_view bytes);

  [[nodiscard]] bool done() const { return done_; }                  // saw [DONE]
  [[nodiscard]] const std::string& error() const { return error_; }  // the server's error event
  [[nodiscard]] uint32_t prompt_tokens() const { return prompt_tokens_; }
  [[nodiscard]] uint32_t output_tokens() const { return output_tokens_; }
  // Of the prompt, from a prefix cache; empty: the server does not tell.
  [[nodiscard]] std::optional<uint32_t> cached_tokens() const { return cached_tokens_; }

 private:
  bool event(std::string_view data);  // true: carried text

  std::function<void(std::string_view)> on_text_;
  std::string line_;
  std::string error_;
  uint32_t prompt_tokens_ = 0;
  uint32_t output_tokens_ = 0;
  std::optional<uint32_t> cached_tokens_;
  bool done_ = false;
};

}  // namespace tandem::bench
