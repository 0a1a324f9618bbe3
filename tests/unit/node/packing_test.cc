#include "common/node/packing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace tandem::node {
namespace {

using Rows = std::vector<uint32_t>;

TEST(PackRows, PutsSeveralPromptsIntoOneStep) {
  EXPECT_EQ(pack_rows(Rows{5, 7, 3}, {.rows = 64, .chunk = 64}), (Rows{5, 7, 3}));
}

TEST(PackRows, CutsALongPromptAtAPageBoundary) {
  EXPECT_EQ(pack_rows(Rows{1000}, {.rows = 100, .chunk = 100}), (Rows{96}));
}

TEST(PackRows, ChunkLimitLeavesRoomForAShortPromptBehindALongOne) {
  EXPECT_EQ(pack_rows(Rows{1000, 9}, {.rows = 96, .chunk = 64}), (Rows{64, 9}));
}

TEST(PackRows, RowsThatTheFirstCannotUseGoToTheNext) {
  // 90 rows: the first takes 80 whole pages, the ten left are enough for the second.
  EXPECT_EQ(pack_rows(Rows{1000, 10}, {.rows = 90, .chunk = 4096}), (Rows{80, 10}));
}

TEST(PackRows, NothingStarvesAndPartsAreWholePages) {
  const auto seed = std::random_device{}();
  std::minstd_rand random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int round = 0; round < 300; ++round) {
    Rows remaining(1 + random() % 20);
    for (auto& r : remaining) r = 1 + static_cast<uint32_t>(random() % 700);
    const PackLimits limits{.rows = 16 + static_cast<uint32_t>(random() % 300),
                            .chunk = 16 + static_cast<uint32_t>(random() % 300)};
    const uint32_t work = std::accumulate(remaining.begin(), remaining.end(), 0U);
    uint32_t steps = 0;
    while (!remaining.empty()) {
      const auto rows = pack_rows(remaining, limits);
      ASSERT_GT(rows.front(), 0U);  // the oldest always advances
      ASSERT_LE(std::accumulate(rows.begin(), rows.end(), 0U), limits.rows);
      Rows next;
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_LE(rows[i], std::min(limits.chunk, remaining[i]));
        if (rows[i] < remaining[i]) {
          ASSERT_EQ(rows[i] % 16, 0U);
          next.push_back(remaining[i] - rows[i]);
        }
      }
      remaining = std::move(next);
      ASSERT_LE(++steps, work);
    }
  }
}

TEST(RowsWithin, FollowsTheMeasuredRateInWholePages) {
  using std::chrono::milliseconds;
  EXPECT_EQ(rows_within(milliseconds(100), 1000, 2048), 96U);   // 100 rows, rounded down
  EXPECT_EQ(rows_within(milliseconds(100), 10, 2048), 16U);     // one page at least
  EXPECT_EQ(rows_within(milliseconds(100), 1e9, 2048), 2048U);  // never over the limit
  EXPECT_EQ(rows_within(milliseconds(100), 1e9, 7), 7U);        // not even for a page
  EXPECT_EQ(rows_within(milliseconds(100), 0, 2048), 128U);     // not measured yet
  EXPECT_EQ(rows_within(milliseconds(100), 0, 0), 0U);
}

}  // namespace
}  // namespace tandem::node
