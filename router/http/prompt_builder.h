#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "router/api/request.h"

namespace tandem::text {
class ChatTemplate;
class Tokenizer;
}  // namespace tandem::text

namespace tandem::router {

// Turns what a client sent into token ids. Immutable; any thread.
class PromptBuilder {
 public:
  // `chat_template` may be null: the model has none.
  PromptBuilder(std::shared_ptr<const text::Tokenizer> tokenizer,
                std::shared_ptr<const text::ChatTemplate> chat_template);

  // Renders and tokenizes. Errors: the template's own words for what it refuses; `context` is only
  // used to refuse texts that cannot fit before any time is spent on them. `field` is what errors
  // name.
  [[nodiscard]] Result<std::vector<TokenId>> chat(const ChatPrompt& prompt, uint32_t context) const;
  [[nodiscard]] Result<std::vector<TokenId>> text(std::string_view text, bool add_special_tokens,
                                                  uint32_t context, std::string_view field) const;
  [[nodiscard]] Result<std::string> render(const ChatPrompt& prompt) const;

  [[nodiscard]] const std::shared_ptr<const text::Tokenizer>& tokenizer() const {
    return tokenizer_;
  }

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::ChatTemplate> template_;
  size_t longest_token_ = 1;  // bytes
};

}  // namespace tandem::router
