// Bodies of the router's API. The first byte chooses the endpoint. Whatever comes, it is either
// refused in words that make a valid answer, or what is handed on keeps every limit.
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/net/http_message.h"
#include "router/api/request.h"

namespace {

using tandem::ErrorCode;
using tandem::TokenId;
using namespace tandem::router;

constexpr ApiLimits kLimits{
    .vocab = 1000, .context = 256, .default_max_tokens = 0, .max_tokens = 0};

void check_error(const tandem::Error& error) {
  TANDEM_CHECK(error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported,
               "the client is to blame");
  TANDEM_CHECK(!error.detail.empty(), "and told why");
  const boost::json::value body = boost::json::parse(tandem::openai_error_body(error));
  TANDEM_CHECK(body.at("error").at("message").is_string(), "in OpenAI's shape");
}

void check_token(TokenId id) {
  TANDEM_CHECK(id >= 0 && static_cast<uint32_t>(id) < kLimits.vocab, "ids are of the vocabulary");
}

void check_tokens(const std::vector<TokenId>& tokens) {
  for (const TokenId id : tokens) check_token(id);
}

void check_sampling(const SamplingFields& s) {
  TANDEM_CHECK(s.temperature >= 0 && s.temperature <= 2, "temperature");
  TANDEM_CHECK(s.top_p > 0 && s.top_p <= 1, "top_p");
  TANDEM_CHECK(s.min_p >= 0 && s.min_p <= 1, "min_p");
  TANDEM_CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), "repetition");
  TANDEM_CHECK(std::isfinite(s.presence_penalty) && std::isfinite(s.frequency_penalty),
               "penalties");
  for (const auto& [id, bias] : s.logit_bias) {
    check_token(id);
    TANDEM_CHECK(std::isfinite(bias), "logit_bias");
  }
}

void check_fields(const GenerationFields& f, size_t prompt_tokens) {
  TANDEM_CHECK(f.n >= 1 && f.n <= kLimits.max_n, "n");
  TANDEM_CHECK(f.stop.size() <= kLimits.max_stop, "stop");
  for (const std::string& stop : f.stop)
    TANDEM_CHECK(!stop.empty() && tandem::is_valid_utf8(stop), "stops are text");
  TANDEM_CHECK(f.logprobs >= -1 && f.logprobs <= static_cast<int32_t>(kLimits.max_logprobs),
               "logprobs");
  TANDEM_CHECK(tandem::is_valid_utf8(f.model), "the model's name is text");
  check_tokens(f.stop_token_ids);
  check_sampling(f.sampling);
  const auto most =
      resolve_max_tokens(f, prompt_tokens, kLimits, "prompt", kCompletionDefaultMaxTokens);
  if (!most) return check_error(most.error());
  TANDEM_CHECK(prompt_tokens + *most <= kLimits.context, "prompt and answer fit the context");
}

void check_chat(const ChatPrompt& prompt) {
  TANDEM_CHECK(boost::json::parse(prompt.messages).is_array(), "messages are a JSON array");
  if (!prompt.tools.empty()) TANDEM_CHECK(boost::json::parse(prompt.tools).is_array(), "tools");
  if (!prompt.template_kwargs.empty())
    TANDEM_CHECK(boost::json::parse(prompt.template_kwargs).is_object(), "template variables");
}

void chat(std::string_view body) {
  const auto request = parse_chat_request(body, kLimits);
  if (!request) return check_error(request.error());
  check_chat(request->prompt);
  check_fields(request->common, 7);
}

void completion(std::string_view body) {
  const auto request = parse_completion_request(body, kLimits);
  if (!request) return check_error(request.error());
  TANDEM_CHECK(!request->prompts.empty() && request->prompts.size() <= kLimits.max_prompts,
               "prompts");
  for (const Prompt& prompt : request->prompts) {
    if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt))
      check_tokens(*tokens);
    else
      TANDEM_CHECK(tandem::is_valid_utf8(std::get<std::string>(prompt)), "prompts are text");
  }
  check_fields(request->common, 300);
}

void tokenize(std::string_view body) {
  const auto request = parse_tokenize_request(body, kLimits);
  if (!request) return check_error(request.error());
  if (const auto* prompt = std::get_if<ChatPrompt>(&request->input))
    check_chat(*prompt);
  else
    TANDEM_CHECK(tandem::is_valid_utf8(std::get<std::string>(request->input)), "text");
}

void detokenize(std::string_view body) {
  const auto request = parse_detokenize_request(body, kLimits);
  if (!request) return check_error(request.error());
  check_tokens(request->tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 0:
      chat(body);
      break;
    case 1:
      completion(body);
      break;
    case 2:
      tokenize(body);
      break;
    case 3:
      detokenize(body);
      break;
  }
  return 0;
}
