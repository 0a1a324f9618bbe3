#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention_decode.h"

namespace tandem::cuda {
namespace {

SequenceSlot slot(uint32_t start, uint32_t rows) {
  SequenceSlot s;
  s.start = start;
  s.rows = rows;
  return s;
}

DecodePlan planned(const DecodeShape& shape, const std::vector<SequenceSlot>& slots,
                   uint32_t max_rows, uint32_t blocks) {
  DecodePlan plan;
  plan_decode(shape, slots, max_rows, blocks, plan);
  return plan;
}

// What a unit reads, without where its results go.
auto work(const DecodeUnit& u) {
  return std::tuple(u.kv_head, u.first_column, u.first_page, u.pages, u.split, u.splits, u.exact);
}

TEST(DecodePlan, CoversEveryPageOfEveryColumnOnce) {
  for (const kv::KvFormat format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4}) {
    for (const uint32_t window : {0U, 100U, 5000U}) {
      const DecodeShape shape{14, 2, 128, window, format};
      const std::vector<SequenceSlot> slots = {slot(0, 1), slot(15, 2),    slot(4096, 1),
                                               slot(0, 0), slot(70000, 3), slot(255, 16),
                                               slot(16, 1)};
      const DecodePlan plan = planned(shape, slots, 16, 132);
      for (uint32_t s = 0; s < slots.size(); ++s) {
        const uint32_t last = slots[s].rows == 0 ? 0 : slots[s].start + slots[s].rows - 1;
        const uint32_t from =
            window == 0 || slots[s].start < window ? 0 : slots[s].start + 1 - window;
        const uint32_t end = format == kv::KvFormat::kInt4 ? last / 16 : last / 16 + 1;
        for (uint32_t head = 0; head < 2; ++head)
          for (uint32_t column = 0; column < slots[s].rows * 7; column += 32) {
            uint32_t next = from / 16;
            uint32_t split = 0;
            uint32_t exact = 0;
            for (const DecodeUnit& u : plan.units) {
              if (u.slot != s || u.kv_head != head || u.first_column != column) continue;
              EXPECT_EQ(u.split, split++);
              if (u.pages > 0) {
                EXPECT_EQ(u.first_page, next);
              }
              next += u.pages;
              exact += u.exact;
              if (u.exact != 0) {
                EXPECT_EQ(u.split + 1, u.splits);
              }
            }
            EXPECT_EQ(next, std::max(end, from / 16)) << "slot " << s;
            EXPECT_EQ(exact, format == kv::KvFormat::kInt4 ? 1U : 0U);
          }
      }
      EXPECT_TRUE(std::ranges::none_of(plan.units, [](const auto& u) { return u.slot == 3; }));
    }
  }
}

TEST(DecodePlan, GivesEverySplitItsOwnResultAndColumnsTheirOwnCounter) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  const std::vector<SequenceSlot> slots = {slot(5000, 8), slot(100, 1), slot(9000, 2)};
  const DecodePlan plan = planned(shape, slots, 8, 132);
  const DecodeLimits limits = decode_limits(shape, 3, 8, 9002);
  EXPECT_LE(plan.units.size(), limits.units);
  std::map<uint32_t, int> partials;
  std::map<uint32_t, std::tuple<uint32_t, uint16_t, uint16_t>> counters;
  for (const DecodeUnit& u : plan.units) {
    if (u.splits == 1) continue;
    EXPECT_EQ(++partials[u.partial + u.split], 1);
    EXPECT_LT(u.partial + u.split, limits.partials);
    EXPECT_LT(u.counter, limits.counters);
    const auto columns = std::tuple(u.slot, u.kv_head, u.first_column);
    EXPECT_EQ(counters.try_emplace(u.counter, columns).first->second, columns);
  }
}

TEST(DecodePlan, SplitsOfASequenceDoNotDependOnItsCompanyOrTheBlocks) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kInt4};
  const DecodePlan alone = planned(shape, {slot(8191, 1)}, 1, 132);
  const DecodePlan crowd = planned(shape, {slot(3, 1), slot(8191, 1), slot(70000, 1)}, 1, 7);
  std::vector<DecodeUnit> mine;
  std::ranges::copy_if(crowd.units, std::back_inserter(mine), [](auto& u) { return u.slot == 1; });
  ASSERT_EQ(mine.size(), alone.units.size());
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(work(mine[i]), work(alone.units[i]));
}

TEST(DecodePlan, BlocksGetEqualSharesOfConsecutiveUnits) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  std::vector<SequenceSlot> slots(32, slot(8191, 1));
  slots.push_back(slot(100, 1));
  const DecodePlan plan = planned(shape, slots, 1, 132);
  ASSERT_EQ(plan.ranges.size(), 133u);
  EXPECT_EQ(plan.ranges.front(), 0u);
  EXPECT_EQ(plan.ranges.back(), plan.units.size());
  uint64_t most = 0;
  uint64_t total = 0;
  for (uint32_t b = 0; b < 132; ++b) {
    ASSERT_LE(plan.ranges[b], plan.ranges[b + 1]);
    uint64_t pages = 0;
    for (uint32_t u = plan.ranges[b]; u < plan.ranges[b + 1]; ++u) pages += plan.units[u].pages;
    most = std::max(most, pages);
    total += pages;
  }
  EXPECT_EQ(total, 4u * (32 * 512 + 7));
  EXPECT_LE(most, total / 132 + 32);  // one unit more than the mean
}

TEST(DecodePlan, OneSequenceSpreadsOverTheBlocks) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  for (const uint32_t context : {4096U, 8192U, 32768U, 131072U}) {
    const DecodePlan plan = planned(shape, {slot(context - 1, 1)}, 1, 132);
    uint32_t busy = 0;
    for (uint32_t b = 0; b < 132; ++b) busy += plan.ranges[b + 1] > plan.ranges[b] ? 1 : 0;
    EXPECT_GE(busy, 64u) << context;
    EXPECT_LE(plan.units.size(), decode_limits(shape, 1, 1, context).units) << context;
  }
}

TEST(DecodePlan, SplitsGrowWithTheContextAndStayFew) {
  uint32_t last = 0;
  for (uint32_t context = 1; context <= 1U << 20; context += 77) {
    const uint32_t split = decode_split_pages(context);
    EXPECT_GE(split, last);
    last = split;
    EXPECT_LE((context + 15) / 16, split * 32) << context;
  }
}

TEST(DecodePlan, AnEmptyStepHasNoWork) {
  const DecodePlan plan = planned({4, 2, 64, 0, kv::KvFormat::kBf16}, {slot(0, 0)}, 1, 4);
  EXPECT_TRUE(plan.units.empty());
  EXPECT_EQ(plan.ranges, std::vector<uint32_t>(5, 0));
}

}  // namespace
}  // namespace tandem::cuda
