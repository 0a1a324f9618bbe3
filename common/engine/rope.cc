#include "common/engine/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/check.h"

namespace tandem::engine {
namespace {

using model::RopeConfig;
using model::RopeType;

constexpr uint32_t kFirstPositions = 4096;

void apply_llama3(const RopeConfig& rope, std::vector<float>& inverse) {
  const double length = rope.original_max_positions;
  const double low_wavelength = length / rope.low_freq_factor;
  const double high_wavelength = length / rope.high_freq_factor;
  for (float& f : inverse) {
    const double wavelength = 2 * std::numbers::pi / static_cast<double>(f);
    if (wavelength < high_wavelength) continue;
    const double scaled = static_cast<double>(f) / rope.factor;
    if (wavelength > low_wavelength) {
      f = static_cast<float>(scaled);
      continue;
    }
    const double smooth = (length / wavelength - rope.low_freq_factor) /
                          (rope.high_freq_factor - rope.low_freq_factor);
    f = static_cast<float>((1 - smooth) * scaled + smooth * static_cast<double>(f));
  }
}

double mscale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

float yarn_scale(const RopeConfig& rope) {
  if (rope.attention_factor) return static_cast<float>(*rope.attention_factor);
  const double a = rope.mscale.value_or(0);
  const double b = rope.mscale_all_dim.value_or(0);
  if (a != 0 && b != 0) return static_cast<float>(mscale(rope.factor, a) / mscale(rope.factor, b));
  return static_cast<float>(mscale(rope.factor, 1));
}

void apply_yarn(const RopeConfig& rope, uint32_t head_dim, std::vector<float>& inverse) {
  const double dim = head_dim;
  // The pair that turns `rotations` times over the original length.
  const auto pair_of = [&](double rotations) {
    return dim * std::log(rope.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast);
  double high = pair_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double f = inverse[i];
    inverse[i] = static_cast<float>(f / rope.factor * ramp + f * (1 - ramp));
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& rope, uint32_t head_dim,
                                 uint32_t max_positions) {
  RopeFrequencies out;
  out.inverse.resize(head_dim / 2);
  for (size_t i = 0; i < out.inverse.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    out.inverse[i] = 1.0F / std::pow(static_cast<float>(rope.theta), exponent);
  }
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (float& f : out.inverse) f /= static_cast<float>(rope.factor);
      break;
    case RopeType::kDynamic:
      TANDEM_CHECK(max_positions <= rope.original_max_positions,
                   "dynamic rope is only right within the original length");
      break;
    case RopeType::kLlama3:
      apply_llama3(rope, out.inverse);
      break;
    case RopeType::kYarn:
      apply_yarn(rope, head_dim, out.inverse);
      out.scale = yarn_scale(rope);
      break;
  }
  for (size_t i = 0; i < std::min(rope.frequency_divisors.size(), out.inverse.size()); ++i)
    out.inverse[i] /= rope.frequency_divisors[i];
  return out;
}

RopeTable RopeCache::table(uint32_t positions) {
  TANDEM_CHECK(positions <= context_, "position past the context");
  const size_t pairs = frequencies_.inverse.size();
  if (positions > filled_) {
    const uint32_t want = std::min(context_, std::max({positions, filled_ * 2, kFirstPositions}));
    cos_.resize(want * pairs);
    sin_.resize(want * pairs);
    for (uint32_t p = filled_; p < want; ++p)
      for (size_t i = 0; i < pairs; ++i) {
        // The reference rounds the angle to float32 too.
        const double angle = static_cast<float>(p) * frequencies_.inverse[i];
        cos_[p * pairs + i] = static_cast<float>(std::cos(angle)) * frequencies_.scale;
        sin_[p * pairs + i] = static_cast<float>(std::sin(angle)) * frequencies_.scale;
      }
    filled_ = want;
  }
  return {cos_.data(), sin_.data(), filled_, static_cast<uint32_t>(2 * pairs)};
}

}  // namespace tandem::engine
