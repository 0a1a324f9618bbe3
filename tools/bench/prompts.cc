#include "tools/bench/prompts.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace tandem::bench {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a stream per key, so that a block's text depends on its id
// only.
uint64_t split_mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

PromptMaker::PromptMaker(std::vector<TokenId> pool, uint64_t seed, double length_scale)
    : pool_(std::move(pool)), seed_(seed), length_scale_(length_scale) {
  TANDEM_CHECK(!pool_.empty(), "a prompt needs tokens to choose from");
}

void PromptMaker::append(uint64_t key, uint32_t tokens, std::vector<TokenId>& out) const {
  uint64_t state = key ^ (seed_ * 0xd6e8feb86659fd93u);
  for (uint32_t i = 0; i < tokens; ++i) out.push_back(pool_[split_mix(state) % pool_.size()]);
}

std::vector<TokenId> PromptMaker::make(const TraceRequest& request, uint64_t index) const {
  std::vector<TokenId> prompt;
  prompt.reserve(request.prompt_tokens);
  double end = 0;  // of the block, in tokens: rounding must not add up over many small blocks
  for (const uint64_t id : request.hash_ids) {
    end += request.hash_block_tokens * length_scale_;
    const auto wanted = static_cast<uint32_t>(
        std::min(std::round(end), static_cast<double>(request.prompt_tokens)));
    append(id, wanted - static_cast<uint32_t>(prompt.size()), prompt);
    if (wanted == request.prompt_tokens) break;
  }
  // Unique remainder: keys with the top bit set cannot meet a hash id.
  append((uint64_t{1} << 63) | index, request.prompt_tokens - static_cast<uint32_t>(prompt.size()),
         prompt);
  return prompt;
}

}  // namespace tandem::bench
