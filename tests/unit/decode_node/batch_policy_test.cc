#include "decode_node/batch_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace tandem::decode {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RankBatch, LongestGenerationFirst) {
  const std::vector<BatchCandidate> c{{.generated = 3, .arrival = 1},
                                      {.generated = 9, .arrival = 2},
                                      {.generated = 5, .arrival = 3}};
  EXPECT_EQ(rank_batch(c, seconds(1)), (std::vector<size_t>{1, 2, 0}));
}

TEST(RankBatch, EqualOnesInOrderOfArrival) {
  const std::vector<BatchCandidate> c{{.generated = 4, .arrival = 9},
                                      {.generated = 4, .arrival = 2}};
  EXPECT_EQ(rank_batch(c, seconds(1)), (std::vector<size_t>{1, 0}));
}

TEST(RankBatch, WaitingAsLongAsTheAgeingTimeBeatsTheLongest) {
  std::vector<BatchCandidate> c{{.generated = 1000, .arrival = 1},
                                {.generated = 1, .waited = milliseconds(900), .arrival = 2}};
  EXPECT_EQ(rank_batch(c, seconds(1)).front(), 0U);
  c[1].waited = milliseconds(1001);
  EXPECT_EQ(rank_batch(c, seconds(1)).front(), 1U);
}

// A never-ending stream of work over few places: nobody waits longer than a bound that depends on
// the number of requests alone, however long the others are.
TEST(RankBatch, NothingStarves) {
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  struct Live {
    BatchCandidate candidate;
    QueueAge age{};
    Duration gap{};  // since it last ran
  };
  for (int round = 0; round < 20; ++round) {
    const size_t slots = 1 + random() % 4;
    const size_t load = slots + 1 + random() % 12;
    const Duration step = milliseconds(1 + random() % 20);
    const Duration ageing = milliseconds(100 + random() % 900);
    const auto turns = static_cast<int64_t>(load / slots + 2);
    const Duration bound = 2 * ageing + turns * step * QueueAge::kTurnSteps;
    std::vector<Live> live;
    uint64_t arrivals = 0;
    for (int i = 0; i < 4000; ++i) {
      while (live.size() < load) {
        live.push_back(
            {.candidate = {.generated = static_cast<uint32_t>(random() % 3 == 0 ? 500 : 1),
                           .arrival = ++arrivals}});
      }
      std::vector<BatchCandidate> c;
      for (auto& l : live) {
        l.candidate.waited = l.age.value();
        c.push_back(l.candidate);
      }
      const auto order = rank_batch(c, ageing);
      for (size_t rank = 0; rank < order.size(); ++rank) {
        Live& l = live[order[rank]];
        if (rank < slots) {
          ++l.candidate.generated;
          l.gap = {};
          l.age.ran();
        } else {
          l.age.waited(step);
          l.gap += step;
          ASSERT_LT(l.gap, bound) << "load " << load << " slots " << slots;
        }
      }
      std::erase_if(live,
                    [&](const Live& l) { return l.gap == Duration{} && random() % 200 == 0; });
    }
  }
}

}  // namespace
}  // namespace tandem::decode
