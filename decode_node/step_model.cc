#include "decode_node/step_model.h"

#include <algorithm>

namespace tandem::decode {
namespace {

// Features of about one, so that all parts are of the order of a step's time.
constexpr double kSequences = 16;
constexpr double kRows = 256;
constexpr double kAttended = 256 * 4096;
// How far a step strays from what it should take, and how far a part moves from step to step; both
// as shares of the time. Their ratio is the weight of a new step: about a tenth.
constexpr double kNoise = 0.1;
constexpr double kDrift = 0.01;

double square(double x) { return x * x; }

std::array<double, 4> features_of(const StepModel::Load& load) {
  return {1, load.decoding / kSequences, load.prompt_rows / kRows, load.attended / kAttended};
}

}  // namespace

double StepModel::predict(const Vector& features) const {
  double sum = 0;
  for (size_t i = 0; i < kParts; ++i) sum += parts_[i] * features[i];
  return sum;
}

void StepModel::add(const Load& load, double seconds) {
  if (seconds <= 0) return;
  if (empty_) {
    for (size_t i = 0; i < kParts; ++i) covariance_[i][i] = square(seconds);
    empty_ = false;
  }
  seen_prompts_ = seen_prompts_ || load.prompt_rows > 0;
  const Vector f = features_of(load);
  for (size_t i = 0; i < kParts; ++i) {
    covariance_[i][i] += square(kDrift * seconds);
    // A part that no step tells anything about must not become worthless: the first step that does
    // would throw it anywhere.
    const double most = square(seconds);
    if (covariance_[i][i] <= most) continue;
    const double shrink = most / covariance_[i][i];
    for (size_t j = 0; j < kParts; ++j) {
      covariance_[i][j] *= j == i ? shrink : 0;
      if (j != i) covariance_[j][i] = 0;
    }
  }
  Vector spread{};  // covariance * f
  for (size_t i = 0; i < kParts; ++i)
    for (size_t j = 0; j < kParts; ++j) spread[i] += covariance_[i][j] * f[j];
  double known = 0;
  for (size_t i = 0; i < kParts; ++i) known += f[i] * spread[i];
  const double variance = square(kNoise * seconds) + std::max(0.0, known);  // whatever rounding did
  const double miss = seconds - predict(f);
  for (size_t i = 0; i < kParts; ++i) {
    parts_[i] = std::max(0.0, parts_[i] + spread[i] / variance * miss);
    for (size_t j = 0; j < kParts; ++j) covariance_[i][j] -= spread[i] * spread[j] / variance;
  }
}

double StepModel::decode_seconds(uint32_t decoding) const {
  return predict(features_of({.decoding = decoding}));
}

double StepModel::seconds_per_prompt_row(uint32_t start) const {
  return seen_prompts_ ? parts_[2] / kRows + parts_[3] / kAttended * start : 0;
}

}  // namespace tandem::decode
