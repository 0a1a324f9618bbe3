#include "common/engine/cuda/step_profile.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

TEST(StepProfile, AddsUpStagesInOrderOfFirstUse) {
  StepProfile profile;
  for (int step = 0; step < 2; ++step) {
    profile.add("qkv", 0.25, 100);
    profile.add("attention", 0.5, 0);
    profile.add("qkv", 0.75, 300);
    profile.end_step();
  }
  EXPECT_EQ(profile.steps(), 2u);
  ASSERT_EQ(profile.stages().size(), 2u);
  EXPECT_EQ(profile.stages()[0].name, "qkv");
  EXPECT_EQ(profile.stages()[0].calls, 4u);
  EXPECT_DOUBLE_EQ(profile.stages()[0].seconds, 2.0);
  EXPECT_DOUBLE_EQ(profile.stages()[0].bytes, 800.0);
  EXPECT_EQ(profile.stages()[1].name, "attention");
  EXPECT_DOUBLE_EQ(profile.seconds(), 3.0);
  profile.clear();
  EXPECT_EQ(profile.steps(), 0u);
  EXPECT_TRUE(profile.stages().empty());
}

}  // namespace
}  // namespace tandem::engine
