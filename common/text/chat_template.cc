#include "common/text/chat_template.h"

#include <boost/json.hpp>
#include <utility>

#include "common/text/rust_abi.h"

namespace tandem::text {
namespace {

struct RustTemplateDeleter {
  void operator()(TandemTemplate* templates) const { tandem_template_free(templates); }
};

// A GGUF file's metadata in the form of a tokenizer_config.json.
std::string config_of(const GgufVocabulary& vocabulary) {
  namespace json = boost::json;
  json::object config;
  const auto role = [&](const char* name, std::optional<int64_t> id) {
    if (!id || *id < 0 || static_cast<size_t>(*id) >= vocabulary.tokens.size()) return;
    config[name] = vocabulary.tokens[static_cast<size_t>(*id)];
  };
  role("bos_token", vocabulary.bos_id);
  role("eos_token", vocabulary.eos_id);
  role("unk_token", vocabulary.unk_id);
  role("pad_token", vocabulary.pad_id);
  json::array templates;
  const auto add = [&](std::string_view name, std::string_view source) {
    if (!source.empty()) templates.push_back({{"name", name}, {"template", source}});
  };
  add("default", vocabulary.chat_template);
  for (const auto& [name, source] : vocabulary.named_chat_templates) add(name, source);
  config["chat_template"] = std::move(templates);
  return json::serialize(config);
}

// The request field a message of the Rust side begins with.
std::string param_of(std::string_view detail) {
  for (const std::string_view field : {"tools", "chat_template_kwargs"}) {
    if (detail.starts_with(field)) return std::string(field);
  }
  return "messages";
}

}  // namespace

struct ChatTemplate::State {
  std::unique_ptr<TandemTemplate, RustTemplateDeleter> rust;
  const Clock* clock = nullptr;
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::from_config(
    std::string_view config_json, std::optional<std::string_view> jinja, const Clock& clock) {
  TandemTemplate* rust = nullptr;
  RustBuffer error;
  const int32_t status = tandem_template_from_config(
      to_slice(config_json), to_slice(jinja.value_or("")), jinja.has_value(), &rust, error.out());
  if (status != 0) return fail(rust_error(status, error));
  auto state = std::make_unique<State>();
  state->rust.reset(rust);
  state->clock = &clock;
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(state)));
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::from_gguf(const GgufVocabulary& vocabulary,
                                                              const Clock& clock) {
  return from_config(config_of(vocabulary), std::nullopt, clock);
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  const TandemRenderRequest request{
      .messages = to_slice(input.messages_json),
      .tools = to_slice(input.tools_json),
      .kwargs = to_slice(input.kwargs_json),
      .add_generation_prompt = input.add_generation_prompt,
      .unix_seconds = state_->clock->unix_seconds(),
  };
  RustBuffer text, error;
  const int32_t status =
      tandem_template_render(state_->rust.get(), &request, text.out(), error.out());
  if (status != 0) {
    Error failure = rust_error(status, error);
    if (failure.code == ErrorCode::kInvalidArgument) failure.param = param_of(failure.detail);
    return fail(std::move(failure));
  }
  return std::string(text.view());
}

}  // namespace tandem::text
