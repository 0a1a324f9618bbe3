#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace tandem::engine {

// Passes over a whole vocabulary's logits, which is what sampling costs. Plain IEEE arithmetic on
// four-wide vectors that every x86-64 has, without fused multiply-adds: the same bits on every
// machine. Single-threaded, no allocation but for results.

inline constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// NaN becomes impossible, +infinity the largest float.
[[nodiscard]] float sanitized(float x);
void sanitize(std::span<float> logits);

struct LogitRange {
  float top = kImpossible;
  float bottom = std::numeric_limits<float>::infinity();
};
[[nodiscard]] LogitRange find_range(std::span<const float> sanitized_logits);

// exp(x) for x <= 0, within a few ulp; 0 below -87.
[[nodiscard]] float exp_negative(float x);
// Sum of exp((x - top) * inverse).
[[nodiscard]] double exp_sum(std::span<const float> logits, float top, float inverse);

struct Candidate {
  float logit = 0;
  TokenId id = 0;
};
// Best first; the lower id wins a tie.
[[nodiscard]] inline bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}
// The `count` best of sanitized logits, best first.
[[nodiscard]] std::vector<Candidate> best(std::span<const float> sanitized_logits, size_t count);

// A prefix of the order `better`: everything up to and including `last`.
struct Cut {
  Candidate last{kImpossible, std::numeric_limits<TokenId>::max()};
};

// Shortest prefix that holds `share` (0 .. 1) of the mass of `logits` at this temperature.
[[nodiscard]] Candidate mass_prefix(std::span<const float> logits, LogitRange range, float inverse,
                                    double share);
// The same among the given candidates only.
[[nodiscard]] Candidate mass_prefix(std::vector<Candidate>& candidates, float top, float inverse,
                                    double share);

// Walks the kept tokens in id order until their mass passes `u` (0 .. 1) of the whole.
[[nodiscard]] TokenId draw(std::span<const float> logits, const Cut& cut, float top, float inverse,
                           double u);

}  // namespace tandem::engine
