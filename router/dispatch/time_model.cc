#include "router/dispatch/time_model.h"

#include <algorithm>
#include <cmath>

namespace tandem::router {

namespace {
// Remembers about the last 200 answers.
constexpr double kForgetting = 0.995;
// Forgetting inflates the covariance in directions that no answer probes; this bounds it.
constexpr double kMaxVarianceA = 1e-2;
constexpr double kMaxVarianceB = 10;
// Remembers about the last 10 prompts: what a node does beside them changes quickly.
constexpr double kPaceForgetting = 0.9;
// The time of fewer tokens is that of a step and of the ways, however many they are.
constexpr double kTokensThatTell = 64;
}  // namespace

void DecodeTimeModel::observe(double prompt_tokens, double new_tokens, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || new_tokens <= 0) return;
  const double x = prompt_tokens;
  const double y = new_tokens;
  const double px = p_aa_ * x + p_ab_ * y;
  const double py = p_ab_ * x + p_bb_ * y;
  const double denominator = kForgetting + x * px + y * py;
  const double ga = px / denominator;
  const double gb = py / denominator;
  const double residual = seconds - (a_ * x + b_ * y);
  a_ += ga * residual;
  b_ += gb * residual;
  p_aa_ = std::min((p_aa_ - ga * px) / kForgetting, kMaxVarianceA);
  p_ab_ = (p_ab_ - ga * py) / kForgetting;
  p_bb_ = std::min((p_bb_ - gb * py) / kForgetting, kMaxVarianceB);
  const double bound = std::sqrt(std::max(0.0, p_aa_ * p_bb_));
  p_ab_ = std::clamp(p_ab_, -bound, bound);
  ++observations_;
}

double DecodeTimeModel::predict(double prompt_tokens, double new_tokens) const {
  return std::max(0.0, a_ * prompt_tokens + b_ * new_tokens);
}

bool PrefillPaceModel::observe(double tokens, double seconds) {
  if (!std::isfinite(seconds) || seconds <= 0 || tokens < kTokensThatTell) return false;
  tokens_ = tokens_ * kPaceForgetting + tokens;
  seconds_ = seconds_ * kPaceForgetting + seconds;
  ++observations_;
  return true;
}

double PrefillPaceModel::per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

void OutputLengthModel::observe(uint32_t new_tokens) {
  recent_[next_] = new_tokens;
  next_ = (next_ + 1) % kWindow;
  count_ = std::min(count_ + 1, kWindow);
}

uint32_t OutputLengthModel::predict(uint32_t generated, uint32_t limit) const {
  // The mean of what longer answers still had to come: the conditional expectation, by counting.
  uint64_t sum = 0;
  uint32_t longer = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (recent_[i] <= generated) continue;
    sum += recent_[i] - generated;
    ++longer;
  }
  const uint64_t guess = longer >= 4 ? (sum + longer - 1) / longer : std::max(kPrior, generated);
  return static_cast<uint32_t>(std::clamp<uint64_t>(guess, std::min<uint32_t>(1, limit), limit));
}

}  // namespace tandem::router
