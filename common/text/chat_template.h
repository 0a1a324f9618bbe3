#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/text/gguf_vocabulary.h"

namespace tandem::text {

// One conversation to render, in the OpenAI API's JSON.
struct ChatInput {
  std::string messages_json;          // array of messages; must not be empty
  std::string tools_json;             // array of tools; "" or "[]": none
  std::string kwargs_json;            // object of further template variables; "": none
  bool add_generation_prompt = true;  // end with the head of the assistant's turn
};

// A model's chat template. What it does to messages before rendering is in common/text/README.md.
// Immutable after loading; `render` may be called from any thread.
class ChatTemplate {
 public:
  // `config_json`: tokenizer_config.json. `jinja`: text of chat_template.jinja, which wins over the
  // configuration's entry. `clock` serves the template's strftime_now and must outlive the object.
  // kNotFound when the model has no chat template, kCorruptData when it does not compile.
  [[nodiscard]] static Result<std::unique_ptr<ChatTemplate>> from_config(
      std::string_view config_json, std::optional<std::string_view> jinja, const Clock& clock);
  [[nodiscard]] static Result<std::unique_ptr<ChatTemplate>> from_gguf(
      const GgufVocabulary& vocabulary, const Clock& clock);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // kInvalidArgument with the template's own message when the template refuses the conversation.
  [[nodiscard]] Result<std::string> render(const ChatInput& input) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace tandem::text
