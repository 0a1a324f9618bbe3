#include "common/engine/cuda/sampling/sample_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace tandem::engine {
namespace {

constexpr float kGreedyBelow = 1e-5F;  // as engine::sample()

bool repeats(const SamplingParams& p) {
  return p.repetition_penalty != 1 && p.repetition_penalty > 0;
}

}  // namespace

bool needs_history(const SamplingParams& p) {
  return repeats(p) || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

SampleBatch::SampleBatch(uint32_t vocab, uint32_t top_capacity, std::span<cuda::SampleRow> rows,
                         std::span<cuda::SampleBias> biases)
    : vocab_(vocab), top_capacity_(top_capacity), rows_(rows), biases_(biases) {}

void SampleBatch::clear() {
  row_count_ = 0;
  bias_count_ = 0;
}

uint32_t SampleBatch::top_count(int32_t asked) const {
  return asked <= 0 ? 0 : std::min(static_cast<uint32_t>(asked), vocab_);
}

Status SampleBatch::room(size_t biases, int32_t top) const {
  if (top_count(top) > top_capacity_)
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(top) +
                    " log-probabilities a token were asked for; the engine has room for " +
                    std::to_string(top_capacity_) + " (max_logprobs)");
  if (biases > biases_.size())
    return fail(ErrorCode::kInvalidArgument, "a logit_bias of " + std::to_string(biases) +
                                                 " entries; the engine has room for " +
                                                 std::to_string(biases_.size()));
  if (row_count_ == rows_.size() || biases > biases_.size() - bias_count_)
    return fail(ErrorCode::kResourceExhausted, "the batch of rows to sample is full");
  return {};
}

void SampleBatch::add_biases(const SamplingParams& params, cuda::SampleRow& row) {
  row.bias_first = static_cast<uint32_t>(bias_count_);
  for (const auto& [id, bias] : params.logit_bias)
    if (id >= 0 && static_cast<uint32_t>(id) < vocab_) biases_[bias_count_++] = {id, bias};
  row.bias_count = static_cast<uint32_t>(bias_count_) - row.bias_first;
  const auto begin = biases_.begin() + row.bias_first;
  // Stable: an id's biases are added in the order in which they were given.
  std::stable_sort(begin, begin + row.bias_count,
                   [](const auto& a, const auto& b) { return a.id < b.id; });
}

Status SampleBatch::add(uint32_t source, const SamplingParams& p, const TokenHistory& history,
                        uint32_t slot) {
  TANDEM_TRY(room(p.logit_bias.size(), p.logprobs));
  cuda::SampleRow row;
  row.mode = cuda::SampleMode::kSample;
  row.source = source;
  row.history = slot;
  row.length = static_cast<uint32_t>(history.tokens.size());
  row.appends = slot != cuda::kNoHistory && !history.settled ? 1 : 0;
  row.prompt = static_cast<uint32_t>(std::min(history.prompt_tokens, history.tokens.size()));
  add_biases(p, row);
  row.top_k =
      p.top_k > 0 && static_cast<uint32_t>(p.top_k) < vocab_ ? static_cast<uint32_t>(p.top_k) : 0;
  // The same operations in the same order as engine::sample().
  row.inverse = !(p.temperature >= kGreedyBelow) ? 0 : 1.0F / std::min(p.temperature, 1e30F);
  row.min_p_offset = -std::numeric_limits<float>::infinity();
  if (p.min_p > 0) row.min_p_offset = p.min_p >= 1 ? 0 : std::log(p.min_p) / row.inverse;
  row.top_share = p.top_p < 1 ? static_cast<double>(std::max(p.top_p, 0.0F)) : 1;
  row.repetition = p.repetition_penalty;
  row.presence = p.presence_penalty;
  row.frequency = p.frequency_penalty;
  row.logprobs = p.logprobs < 0 ? -1 : static_cast<int32_t>(top_count(p.logprobs));
  row.seed = p.seed;
  rows_[row_count_++] = row;
  return {};
}

Status SampleBatch::add_score(uint32_t source, TokenId token, int32_t top) {
  if (token < 0 || static_cast<uint32_t>(token) >= vocab_)
    return fail(ErrorCode::kInvalidArgument,
                "the scored token " + std::to_string(token) + " is outside the vocabulary");
  TANDEM_TRY(room(0, top));
  cuda::SampleRow row;
  row.mode = cuda::SampleMode::kScore;
  row.source = source;
  row.token = token;
  row.logprobs = static_cast<int32_t>(top_count(top));
  rows_[row_count_++] = row;
  return {};
}

void SampleBatch::pad(uint32_t rows) {
  while (row_count_ < std::min<size_t>(rows, rows_.size())) rows_[row_count_++] = {};
}

}  // namespace tandem::engine
