#include "tools/cli/prompt_input.h"

#include <boost/json.hpp>
#include <charconv>

namespace tandem::cli {
namespace {

namespace json = boost::json;

tl::unexpected<Error> bad(std::string_view source, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, std::string(source) + ": " + what);
}

Result<json::value> parse_json(std::string_view text, std::string_view source) {
  json::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) return bad(source, "not valid JSON: " + error.message());
  return value;
}

}  // namespace

Result<text::ChatInput> parse_chat(std::string_view text, std::string_view source) {
  TANDEM_ASSIGN(const json::value value, parse_json(text, source));
  text::ChatInput chat;
  if (value.is_array()) {
    chat.messages_json = json::serialize(value);
  } else if (const json::object* object = value.if_object()) {
    const json::value* messages = object->if_contains("messages");
    if (messages == nullptr || !messages->is_array()) {
      return bad(source, "\"messages\" must be an array of messages");
    }
    chat.messages_json = json::serialize(*messages);
    if (const json::value* tools = object->if_contains("tools");
        tools != nullptr && !tools->is_null()) {
      if (!tools->is_array()) return bad(source, "\"tools\" must be an array");
      chat.tools_json = json::serialize(*tools);
    }
    if (const json::value* kwargs = object->if_contains("chat_template_kwargs")) {
      if (!kwargs->is_object()) return bad(source, "\"chat_template_kwargs\" must be an object");
      chat.kwargs_json = json::serialize(*kwargs);
    }
  } else {
    return bad(source, "expected an object with \"messages\", or an array of messages");
  }
  if (chat.messages_json == "[]") return bad(source, "\"messages\" is empty");
  return chat;
}

Result<RenderedPrompt> render_chat(const text::TextModel& model, const text::ChatInput& chat) {
  if (model.chat_template == nullptr) {
    return fail(ErrorCode::kUnsupported, "this model has no chat template; use --prompt or --text");
  }
  RenderedPrompt prompt;
  TANDEM_ASSIGN(prompt.rendered, model.chat_template->render(chat));
  TANDEM_ASSIGN(prompt.ids, model.tokenizer->encode(prompt.rendered));
  return prompt;
}

Result<std::vector<TokenId>> parse_ids(std::string_view text, std::string_view source) {
  constexpr std::string_view kSeparators = " \t\r\n,";
  std::vector<TokenId> ids;
  size_t at = 0;
  while ((at = text.find_first_not_of(kSeparators, at)) != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) {
      return bad(source, "number " + std::to_string(ids.size() + 1) + " is no token id: \"" +
                             std::string(word.substr(0, 40)) + "\"");
    }
    ids.push_back(id);
    at = end;
  }
  if (ids.empty()) return bad(source, "holds no token ids");
  return ids;
}

Status check_ids(const std::vector<TokenId>& ids, size_t vocab, std::string_view source) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<size_t>(ids[i]) < vocab) continue;
    return bad(source, "number " + std::to_string(i + 1) + " is token id " +
                           std::to_string(ids[i]) + ", but the vocabulary ends at " +
                           std::to_string(vocab - 1));
  }
  return {};
}

}  // namespace tandem::cli
