#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "router/api/parse_common.h"

namespace tandem::router {
namespace json = boost::json;

namespace {

Status empty_prompt(const std::string& path) {
  return fail(ErrorCode::kInvalidArgument, path + " is empty: there is nothing to continue", path);
}

// string | [string] | [id] | [[id]], never mixed.
Status read_prompts(const json::value& value, const ApiLimits& limits, std::vector<Prompt>& out) {
  if (value.is_string()) {
    out.emplace_back(std::string(std::string_view(value.get_string())));
    return {};
  }
  if (!value.is_array()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("prompt must be a string, an array of strings, or arrays of token ids, not {}",
                    json_kind_name(value)),
        "prompt");
  }
  const json::array& list = value.get_array();
  if (list.empty()) return empty_prompt("prompt");
  if (list[0].is_number()) {
    TANDEM_ASSIGN(std::vector<TokenId> ids, read_token_ids(list, "prompt", limits));
    out.emplace_back(std::move(ids));
    return {};
  }
  if (list.size() > limits.max_prompts) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("prompt holds {} prompts; at most {} are allowed in one request",
                            list.size(), limits.max_prompts),
                "prompt");
  }
  const bool strings = list[0].is_string();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("prompt[{}]", i);
    if (strings && list[i].is_string()) {
      out.emplace_back(std::string(std::string_view(list[i].get_string())));
    } else if (!strings && list[i].is_array()) {
      if (list[i].get_array().empty()) return empty_prompt(path);
      TANDEM_ASSIGN(std::vector<TokenId> ids, read_token_ids(list[i].get_array(), path, limits));
      out.emplace_back(std::move(ids));
    } else {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is {}; all prompts must be strings, or all arrays of token ids",
                              path, json_kind_name(list[i])),
                  path);
    }
  }
  return {};
}

}  // namespace

Result<CompletionRequest> parse_completion_request(std::string_view body, const ApiLimits& limits) {
  TANDEM_ASSIGN(const json::object object, parse_json_object(body));
  ObjectReader reader(object, "");
  CompletionRequest request;
  read_generation_fields(reader, limits, request.common);
  reader.read("echo", request.echo);
  reader.read("add_special_tokens", request.add_special_tokens);
  read_max_tokens(reader, "max_tokens", 0, limits, request.common);
  int64_t logprobs = 0;
  if (reader.read_integer("logprobs", 0, limits.max_logprobs, logprobs)) {
    request.common.logprobs = static_cast<int32_t>(logprobs);
  }
  reader.refuse("suffix", "this model cannot fill in the middle");
  if (const json::value* prompt = reader.find("prompt")) {
    if (Status status = read_prompts(*prompt, limits, request.prompts); !status) {
      reader.fault(status.error());
    }
  } else {
    reader.fault("prompt", "prompt is missing");
  }
  const size_t choices = request.prompts.size() * request.common.n;
  if (choices > limits.max_prompts) {
    reader.fault(
        "n", fmt::format("{} prompts with n = {} make {} choices; at most {} are allowed",
                         request.prompts.size(), request.common.n, choices, limits.max_prompts));
  }
  TANDEM_TRY(reader.status());
  return request;
}

Result<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiLimits& limits) {
  (void)limits;
  TANDEM_ASSIGN(const json::object object, parse_json_object(body));
  ObjectReader reader(object, "");
  TokenizeRequest request;
  reader.read("model", request.model);
  reader.read("return_token_strs", request.return_token_strs);
  if (reader.find("messages") != nullptr) {
    ChatPrompt prompt;
    read_chat_prompt(reader, prompt);
    request.add_special_tokens = prompt.add_special_tokens;
    request.input = std::move(prompt);
  } else {
    reader.read("add_special_tokens", request.add_special_tokens);
    std::string text;
    if (!reader.read("prompt", text) && reader.find("prompt") == nullptr) {
      reader.fault("prompt", "prompt is missing: send prompt, or messages");
    }
    request.input = std::move(text);
  }
  TANDEM_TRY(reader.status());
  return request;
}

Result<DetokenizeRequest> parse_detokenize_request(std::string_view body, const ApiLimits& limits) {
  TANDEM_ASSIGN(const json::object object, parse_json_object(body));
  ObjectReader reader(object, "");
  DetokenizeRequest request;
  reader.read("model", request.model);
  const json::array* tokens = reader.read_array("tokens");
  if (reader.ok() && tokens == nullptr) reader.fault("tokens", "tokens is missing");
  TANDEM_TRY(reader.status());
  TANDEM_ASSIGN(request.tokens, read_token_ids(*tokens, "tokens", limits));
  return request;
}

}  // namespace tandem::router
