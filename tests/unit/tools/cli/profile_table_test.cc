#include "tools/cli/profile_table.h"

#include <gtest/gtest.h>

#include "common/engine/cuda/step_profile.h"

namespace tandem::cli {
namespace {

TEST(ProfileTable, HasALineForEachStageTheCostliestFirst) {
  engine::StepProfile profile;
  profile.add("embed", 0.0005, 1'000'000);
  profile.add("attention", 0.001, 3'000'000'000);
  profile.add("attention", 0.0005, 0);
  profile.end_step();
  EXPECT_EQ(
      profile_table(profile),
      "stage                        calls   us a call         ms         MB     GB/s   share\n"
      "attention                        2       750.0       1.50     3000.0     2000   75.0%\n"
      "embed                            1       500.0       0.50        1.0     2.00   25.0%\n");
  EXPECT_EQ(profile_table(engine::StepProfile()).find('\n') + 1,
            profile_table(engine::StepProfile()).size());
}

}  // namespace
}  // namespace tandem::cli
