#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace tandem::engine {

// Field meanings are OpenAI's and vLLM's. Applied in this order: logit_bias, repetition, presence
// and frequency penalties, temperature, top-k, top-p, min-p. temperature 0 is greedy (lowest id on
// ties), and so is one below 1e-5, where float32 logits leave nothing else. top_p 0 keeps one
// token.
struct SamplingParams {
  float temperature = 1;
  int32_t top_k = 0;  // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;  // over prompt and answer
  float presence_penalty = 0;    // over the answer only
  float frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // ids checked against the vocabulary upstream
  uint64_t seed = 0;
  int32_t logprobs = -1;  // -1: none; else that many best alternatives besides the sampled token
};

inline constexpr float kMinLogprob = -9999.0F;

struct TokenLogprob {
  TokenId id = 0;
  // Natural log, of the model's raw distribution: before bias, penalties and temperature. Finite:
  // not below kMinLogprob.
  float logprob = 0;
};

struct SampledToken {
  TokenId id = 0;
  float logprob = 0;              // valid when params.logprobs >= 0
  std::vector<TokenLogprob> top;  // best first
};

// What the penalties look at.
struct TokenHistory {
  std::span<const TokenId> tokens;  // prompt followed by the answer so far
  size_t prompt_tokens = 0;
  // Names the sequence among those alive at once, so that an engine may keep its tokens; 0:
  // unnamed.
  uint64_t sequence = 0;
  // In a step that verifies guesses: how many of the tokens are none. Those behind them and what is
  // drawn need not be what the sequence goes on with.
  std::optional<size_t> settled = {};
};

// Draws the token for absolute position history.tokens.size() from logits[vocab]. The only
// randomness is Philox4x32-10 keyed by (seed, position), so a token does not depend on batch
// company, node or retry. logits is scratch: overwritten. NaN counts as impossible, infinity as the
// largest float; ids outside the vocabulary in bias and history are skipped.
[[nodiscard]] SampledToken sample(std::span<float> logits, const SamplingParams& params,
                                  const TokenHistory& history);

// Log-probabilities of `token` and of the `top` best under softmax(logits): prompt scoring.
[[nodiscard]] SampledToken score(std::span<const float> logits, TokenId token, int32_t top);

// Philox4x32-10 (Salmon et al. 2011), one 32-bit word for (seed, position); published test vectors
// hold. Exposed for the tests and for the device sampler.
[[nodiscard]] uint32_t philox(uint64_t seed, uint64_t position);
[[nodiscard]] std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                                 std::array<uint32_t, 2> key);

}  // namespace tandem::engine
