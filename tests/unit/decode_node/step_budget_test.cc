#include "decode_node/step_budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tandem::decode {
namespace {

constexpr Duration kLimit = std::chrono::milliseconds(20);

TEST(StepBudget, GivesPromptsWhatDecodingLeaves) {
  const StepBudget budget(kLimit);
  EXPECT_EQ(budget.for_prompts(0), kLimit);
  EXPECT_NEAR(to_seconds(budget.for_prompts(0.015)), 0.005, 1e-9);
  EXPECT_EQ(budget.for_prompts(0.030), Duration{0});
}

// Steps that take what was planned, give or take: hardly one in a hundred is late, and the budget
// is not thrown away for that.
TEST(StepBudget, AboutOneStepInAHundredOverruns) {
  for (const double spread : {0.02, 0.1, 0.3}) {
    std::mt19937_64 rng(7);
    std::lognormal_distribution<double> noise(0, spread);
    StepBudget budget(kLimit);
    constexpr int kSteps = 40000;
    int late = 0;
    double used = 0;
    for (int i = 0; i < kSteps; ++i) {
      const double decode = 0.004;
      const double seconds = (decode + to_seconds(budget.for_prompts(decode))) * noise(rng);
      late += seconds > to_seconds(kLimit) && i > 2000 ? 1 : 0;
      used += seconds;
      budget.took(Duration(static_cast<Duration::rep>(seconds * 1e9)));
    }
    EXPECT_LT(late, kSteps * 15 / 1000) << "spread " << spread;
    // A lognormal's 99th percentile lies exp(2.33 spread) above its median.
    EXPECT_GT(used / kSteps, 0.85 * to_seconds(kLimit) / std::exp(2.33 * spread));
  }
}

// A machine that turns slow for a while is believed, and then forgotten.
TEST(StepBudget, FollowsAMachineThatTurnsSlowAndRecovers) {
  StepBudget budget(kLimit);
  for (int i = 0; i < 50; ++i) budget.took(budget.for_prompts(0) * 3);
  EXPECT_LT(to_seconds(budget.for_prompts(0)) * 3, 1.2 * to_seconds(kLimit));
  for (int i = 0; i < 3000; ++i) budget.took(budget.for_prompts(0));
  EXPECT_GT(budget.share(), 0.99);
}

}  // namespace
}  // namespace tandem::decode
