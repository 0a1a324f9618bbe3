#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tandem::router {

inline constexpr double kMaxTemperature = 2;

// What a request gets that does not say; empty: OpenAI's own defaults, as in SamplingFields.
struct SamplingDefaults {
  std::optional<double> temperature = {};
  std::optional<double> top_p = {};
  std::optional<uint32_t> top_k = {};  // 0: off
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  uint32_t chat_max_tokens = 0;  // 0: what is left of the context
};
// {"temperature":0.6,"top_p":0.95}: what is not empty, under the names that requests use.
[[nodiscard]] std::string sampling_defaults_json(const SamplingDefaults& defaults);

// What programs that chat with people should ask for nevertheless: at OpenAI's temperature of 1
// small models ramble. Empty where the defaults have a temperature.
[[nodiscard]] SamplingDefaults chat_sampling(const SamplingDefaults& defaults);

// "default_sampling_params":{…},"chat_sampling_params":{…}: both, as /v1/models and /status tell.
[[nodiscard]] std::string sampling_members_json(const SamplingDefaults& defaults);

// What a request is checked against. `vocab` and `context` are the model's.
struct ApiLimits {
  uint32_t vocab = 0;
  uint32_t context = 0;             // positions of prompt and answer together
  uint32_t default_max_tokens = 0;  // 0: what is left of the context
  uint32_t max_tokens = 0;          // 0: no limit below the context
  uint32_t max_n = 16;
  uint32_t max_prompts = 64;
  uint32_t max_stop = 16;
  uint32_t max_logprobs = 20;
  SamplingDefaults sampling = {};
};

// OpenAI's sampling fields and vLLM's additions, checked and normalised: a temperature too small to
// tell from greedy is 0, top_p 0 is top_k 1.
struct SamplingFields {
  double temperature = 1;
  double top_p = 1;
  int32_t top_k = 0;  // 0: off
  double min_p = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<int64_t> seed;
};

// What both generating endpoints share.
struct GenerationFields {
  std::string model;
  bool stream = false;
  bool include_usage = false;
  uint32_t n = 1;
  std::optional<uint32_t> max_tokens;
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;  // no empty entries
  std::vector<TokenId> stop_token_ids;
  bool include_stop_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  int32_t logprobs = -1;  // -1: none; else that many alternatives
  SamplingFields sampling;
};

// What a chat template is rendered from, as JSON text: normalised messages (string contents), tools
// or empty, extra template variables or empty.
struct ChatPrompt {
  std::string messages;
  std::string tools;
  std::string template_kwargs;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
};

struct ChatRequest {
  GenerationFields common;
  ChatPrompt prompt;
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationFields common;
  std::vector<Prompt> prompts;
  bool echo = false;
  bool add_special_tokens = true;
};

struct TokenizeRequest {
  std::string model;  // may be empty
  std::variant<std::string, ChatPrompt> input;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;  // may be empty
  std::vector<TokenId> tokens;
};

// Errors are kInvalidArgument or kUnsupported; `param` is the full path of the field at fault.
// Fields unknown to both OpenAI and vLLM are ignored. Pure functions: any thread.
[[nodiscard]] Result<ChatRequest> parse_chat_request(std::string_view body,
                                                     const ApiLimits& limits);
[[nodiscard]] Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                                 const ApiLimits& limits);
[[nodiscard]] Result<TokenizeRequest> parse_tokenize_request(std::string_view body,
                                                             const ApiLimits& limits);
[[nodiscard]] Result<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                                 const ApiLimits& limits);

// How many tokens may be generated after a prompt of that length. `prompt_field` names the field to
// blame ("messages", "prompt"); `fallback` is the endpoint's own default (0: what is left).
// Errors: the prompt fills the context; max_tokens does not fit; min_tokens exceeds it.
[[nodiscard]] Result<uint32_t> resolve_max_tokens(const GenerationFields& fields,
                                                  size_t prompt_tokens, const ApiLimits& limits,
                                                  std::string_view prompt_field, uint32_t fallback);

// OpenAI's default of the legacy endpoint.
inline constexpr uint32_t kCompletionDefaultMaxTokens = 16;

// The 64-bit key of choice `choice`: the same request with the same seed repeats itself, the
// choices of one request differ. `seed` is the client's, or random.
[[nodiscard]] uint64_t choice_seed(int64_t seed, uint32_t choice);

}  // namespace tandem::router
