#include "router/http/prompt_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"

namespace tandem::router {

namespace {

// Normalisation may shorten a text before it is tokenized (NFKC at most by about this).
constexpr size_t kNormalisationSlack = 18;

// continue_final_message: the rendered conversation up to the end of its last message's content.
Result<std::string> cut_after_last_message(std::string rendered, const std::string& messages) {
  boost::json::error_code ec;
  const boost::json::value parsed = boost::json::parse(messages, ec);
  const auto* content = ec ? nullptr : parsed.as_array().back().as_object().if_contains("content");
  std::string last = content != nullptr && content->is_string()
                         ? std::string(std::string_view(content->get_string()))
                         : std::string();
  const size_t end = last.find_last_not_of(" \t\r\n");
  last.resize(end == last.npos ? 0 : end + 1);
  const size_t at = last.empty() ? rendered.npos : rendered.rfind(last);
  if (at == rendered.npos) {
    return fail(
        ErrorCode::kInvalidArgument,
        "continue_final_message: the last message's content does not appear in the rendered prompt",
        "continue_final_message");
  }
  rendered.resize(at + last.size());
  return rendered;
}

}  // namespace

PromptBuilder::PromptBuilder(std::shared_ptr<const text::Tokenizer> tokenizer,
                             std::shared_ptr<const text::ChatTemplate> chat_template)
    : tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)) {
  for (size_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    longest_token_ =
        std::max(longest_token_, tokenizer_->token_text(static_cast<TokenId>(id)).size());
  }
}

Result<std::string> PromptBuilder::render(const ChatPrompt& prompt) const {
  if (template_ == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "the model has no chat template: use /v1/completions, or add chat_template.jinja "
                "to its folder",
                "messages");
  }
  text::ChatInput input;
  input.messages_json = prompt.messages;
  input.tools_json = prompt.tools;
  input.kwargs_json = prompt.template_kwargs;
  input.add_generation_prompt = prompt.add_generation_prompt;
  Result<std::string> rendered = template_->render(input);
  if (!rendered) {
    Error error = std::move(rendered).error();
    if (error.param.empty()) error.param = "messages";
    return fail(std::move(error));
  }
  if (prompt.continue_final_message) {
    return cut_after_last_message(std::move(*rendered), prompt.messages);
  }
  return rendered;
}

Result<std::vector<TokenId>> PromptBuilder::chat(const ChatPrompt& prompt, uint32_t context) const {
  TANDEM_ASSIGN(const std::string rendered, render(prompt));
  return text(rendered, prompt.add_special_tokens, context, "messages");
}

Result<std::vector<TokenId>> PromptBuilder::text(std::string_view text, bool add_special_tokens,
                                                 uint32_t context, std::string_view field) const {
  const size_t least = text.size() / (longest_token_ * kNormalisationSlack);
  if (context != 0 && least > context) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("This model's maximum context length is {} tokens; {} holds at least {}. "
                    "Send a shorter prompt",
                    context, field, least),
        std::string(field));
  }
  text::EncodeOptions options;
  options.add_special_tokens = add_special_tokens;
  Result<std::vector<TokenId>> ids = tokenizer_->encode(text, options);
  if (!ids) {
    Error error = std::move(ids).error();
    if (error.param.empty()) error.param = std::string(field);
    return fail(std::move(error));
  }
  return ids;
}

}  // namespace tandem::router
