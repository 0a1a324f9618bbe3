#include "decode_node/batch_policy.h"

#include <algorithm>
#include <numeric>

namespace tandem::decode {

double batch_score(const BatchCandidate& candidate, uint32_t longest, Duration ageing) {
  const double length =
      static_cast<double>(candidate.generated) / static_cast<double>(std::max(longest, 1U));
  return length + to_seconds(candidate.waited) / to_seconds(std::max(ageing, Duration{1}));
}

std::vector<size_t> rank_batch(std::span<const BatchCandidate> candidates, Duration ageing) {
  uint32_t longest = 0;
  for (const auto& c : candidates) longest = std::max(longest, c.generated);
  std::vector<double> score(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    score[i] = batch_score(candidates[i], longest, ageing);
  }
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    if (score[a] != score[b]) return score[a] > score[b];
    return candidates[a].arrival < candidates[b].arrival;
  });
  return order;
}

}  // namespace tandem::decode
