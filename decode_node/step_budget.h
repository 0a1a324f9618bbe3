#pragma once

#include <algorithm>

#include "common/base/clock.h"

namespace tandem::decode {

// How long a step that decodes may be planned to take, so that about one in a hundred takes longer
// than `limit`. Plans are made from averages and steps vary around them: a step that overran takes
// a tenth off what is planned for, every other one gives a thousandth back. Both balance where one
// step in a hundred overruns. Control thread.
class StepBudget {
 public:
  explicit StepBudget(Duration limit) : limit_(limit) {}

  // What prompts may take of the next step when its decode rows take `decode_seconds`.
  [[nodiscard]] Duration for_prompts(double decode_seconds) const {
    const double left = to_seconds(limit_) * share_ - decode_seconds;
    return Duration(static_cast<Duration::rep>(std::max(left, 0.0) * 1e9));
  }
  // A step with decode rows and prompts has taken `time`.
  void took(Duration time) {
    share_ = time > limit_ ? std::max(kLeast, share_ * 0.9) : std::min(1.0, share_ * 1.00105);
  }
  [[nodiscard]] double share() const { return share_; }

 private:
  // Prompts advance by a page a step whatever happens; below this there is nothing to learn.
  static constexpr double kLeast = 0.05;
  Duration limit_;
  double share_ = 1;
};

}  // namespace tandem::decode
