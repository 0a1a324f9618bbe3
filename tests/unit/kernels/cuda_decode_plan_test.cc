#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention_decode.h"

namespace tandem::cuda {
namespace {

SequenceSlot slot(uint32_t start, uint32_t rows = 1) {
  SequenceSlot s;
  s.start = start;
  s.rows = rows;
  s.tail = start % 7;
  return s;
}

DecodePlan planned(const DecodeShape& shape, const std::vector<SequenceSlot>& slots,
                   uint32_t blocks) {
  DecodePlan plan;
  plan_decode(shape, slots, blocks, plan);
  return plan;
}

DecodeLimits limits_for(const DecodeShape& shape, const std::vector<SequenceSlot>& slots,
                        uint32_t blocks, uint32_t max_context) {
  DecodeSteps steps;
  steps.sequences = static_cast<uint32_t>(slots.size());
  steps.rows = 0;
  for (const SequenceSlot& s : slots) {
    steps.sequence_rows = std::max(steps.sequence_rows, s.rows);
    steps.rows += s.rows;
  }
  steps.blocks = blocks;
  steps.max_context = max_context;
  return decode_limits(shape, steps);
}

// What a unit reads, without where its results go.
auto work(const DecodeUnit& u) {
  return std::tuple(u.kv_head, u.first_column, u.first_page, u.pages, u.split, u.splits, u.exact);
}

const std::vector<SequenceSlot> kFew = {slot(0),     slot(15),  slot(4096), slot(0, 0),
                                        slot(70000), slot(255), slot(16)};
// More than kDecodeFewSequences.
std::vector<SequenceSlot> many() {
  std::vector<SequenceSlot> slots = kFew;
  for (uint32_t i = 0; i < 14; ++i) slots.push_back(slot(i * i * 37));
  return slots;
}

// The units of one head's columns of a sequence, which read every page a query sees once.
void expect_covered(const DecodeShape& shape, const DecodePlan& plan, const SequenceSlot& slot,
                    uint32_t index, uint32_t head, uint32_t column) {
  const bool exact_last = shape.format == kv::KvFormat::kInt4;
  const uint32_t from =
      shape.window == 0 || slot.start < shape.window ? 0 : slot.start + 1 - shape.window;
  const uint32_t end = exact_last ? slot.start / 16 : slot.start / 16 + 1;
  uint32_t next = from / 16;
  uint32_t split = 0;
  uint32_t exact = 0;
  for (const DecodeUnit& u : plan.units) {
    if (u.slot != index || u.kv_head != head || u.first_column != column) continue;
    EXPECT_EQ(u.split, split++);
    if (u.pages > 0) {
      EXPECT_EQ(u.first_page, next);
    }
    next += u.pages;
    if (u.exact != 0) {
      ++exact;
      EXPECT_EQ(u.exact, 1 + slot.tail);
      EXPECT_EQ(u.split + 1, u.splits);
    }
  }
  EXPECT_GE(split, slot.rows);
  EXPECT_LE(split, kDecodeMostSplits);
  EXPECT_EQ(next, slot.rows == 0 ? from / 16 : std::max(end, from / 16)) << "slot " << index;
  EXPECT_EQ(exact, slot.rows != 0 && exact_last ? 1u : 0u);
}

TEST(DecodePlan, CoversEveryPageOfEveryColumnOnce) {
  for (const kv::KvFormat format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4})
    for (const uint32_t window : {0U, 100U, 5000U})
      for (const uint32_t blocks : {5U, 132U, 264U})
        for (const auto& slots : {kFew, many()}) {
          const DecodeShape shape{24, 2, 128, window, format};
          const DecodePlan plan = planned(shape, slots, blocks);
          EXPECT_EQ(plan.ranges.size(), blocks + 1);
          EXPECT_EQ(plan.ranges.front(), 0u);
          EXPECT_EQ(plan.ranges.back(), plan.units.size());
          EXPECT_TRUE(std::ranges::is_sorted(plan.ranges));
          for (uint32_t s = 0; s < slots.size(); ++s)
            for (const uint32_t head : {0U, 1U})
              for (const uint32_t column : {0U, 8U})
                expect_covered(shape, plan, slots[s], s, head, column);
          EXPECT_TRUE(std::ranges::none_of(plan.units, [](const auto& u) { return u.slot == 3; }));
          const DecodeLimits limits = limits_for(shape, slots, blocks, 70001);
          EXPECT_LE(plan.units.size(), limits.units);
        }
}

TEST(DecodePlan, GivesEverySplitItsOwnResultAndColumnsTheirOwnCounter) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  for (const auto& slots : {kFew, many()}) {
    const DecodePlan plan = planned(shape, slots, 132);
    const DecodeLimits limits = limits_for(shape, slots, 132, 70001);
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
}

TEST(DecodePlan, SplitsOfASequenceDoNotDependOnItsCompanyOrTheBlocks) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kInt4};
  const DecodePlan alone = planned(shape, {slot(8191)}, 132);
  const DecodePlan crowd = planned(shape, {slot(3), slot(8191), slot(70000)}, 7);
  std::vector<DecodeUnit> mine;
  std::ranges::copy_if(crowd.units, std::back_inserter(mine), [](auto& u) { return u.slot == 1; });
  ASSERT_EQ(mine.size(), alone.units.size());
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(work(mine[i]), work(alone.units[i]));
}

// Pages of the block that has most, and of all.
std::pair<uint64_t, uint64_t> load(const DecodePlan& plan) {
  uint64_t most = 0;
  uint64_t total = 0;
  for (size_t b = 0; b + 1 < plan.ranges.size(); ++b) {
    uint64_t pages = 0;
    for (uint32_t u = plan.ranges[b]; u < plan.ranges[b + 1]; ++u) pages += plan.units[u].pages;
    most = std::max(most, pages);
    total += pages;
  }
  return {most, total};
}

TEST(DecodePlan, BlocksGetEqualSharesOfConsecutiveUnits) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  const auto [few, all_few] = load(planned(shape, std::vector(16, slot(8191)), 264));
  EXPECT_EQ(all_few, 4u * 16 * 512);
  EXPECT_LE(few, all_few / 264 + 32);  // one unit more than the mean
  // Of many sequences, however long, heads are cut where a block has its share.
  for (const uint32_t context : {100U, 1000U, 2048U, 8192U}) {
    std::vector<SequenceSlot> slots(32, slot(context - 1));
    slots.push_back(slot(100));
    const DecodePlan plan = planned(shape, slots, 264);
    const auto [most, total] = load(plan);
    EXPECT_EQ(total, 4u * (32 * ((context + 15) / 16) + 7));
    EXPECT_LE(most, total / 264 + 16) << context;
    EXPECT_LE(plan.units.size(), 4u * 33 + 264) << context;
  }
}

TEST(DecodePlan, OneSequenceSpreadsOverTheBlocks) {
  for (const uint32_t kv_heads : {1U, 4U, 8U, 32U})
    for (const uint32_t context : {8192U, 9000U, 32768U, 131072U}) {
      const DecodeShape shape{32, kv_heads, 128, 0, kv::KvFormat::kBf16};
      const DecodePlan plan = planned(shape, {slot(context - 1)}, 132);
      uint32_t busy = 0;
      for (uint32_t b = 0; b < 132; ++b) busy += plan.ranges[b + 1] > plan.ranges[b] ? 1 : 0;
      EXPECT_GE(busy, kv_heads == 1 ? 16u : 60u) << kv_heads << " " << context;
      EXPECT_LE(plan.units.size(), limits_for(shape, {slot(context - 1)}, 132, context).units)
          << context;
    }
}

TEST(DecodePlan, SplitsGrowWithTheContextAndStayFew) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  // Multiples of the seven walkers; of long contexts, what gives 33 splits.
  EXPECT_EQ(decode_split_pages(shape, 1), 14u);
  EXPECT_EQ(decode_split_pages(shape, 4096), 14u);
  EXPECT_EQ(decode_split_pages(shape, 4097), 35u);
  EXPECT_EQ(decode_split_pages(shape, 33 * 35 * 16), 35u);
  EXPECT_EQ(decode_split_pages(shape, 33 * 35 * 16 + 1), 36u);
  EXPECT_EQ(decode_split_pages(shape, 32768), 63u);
  EXPECT_EQ(decode_split_pages({32, 32, 128, 0, kv::KvFormat::kBf16}, 8192), 64u);
  EXPECT_EQ(decode_split_pages({32, 4, 256, 0, kv::KvFormat::kBf16}, 4097), 32u);
  uint32_t last = 0;
  for (uint32_t context = 1; context <= 1U << 20; context += 77) {
    const uint32_t split = decode_split_pages(shape, context);
    EXPECT_GE(split, last);
    last = split;
    EXPECT_LE((context + 15) / 16, split * 33) << context;
  }
}

// One that had no work would end early and leave its multiprocessor to two of the next kernel's.
TEST(DecodePlan, EveryBlockHasWorkOfOneLongSequence) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  for (const uint32_t context : {20000U, 24000U, 32768U, 65536U, 131072U})
    EXPECT_EQ(planned(shape, {slot(context - 1)}, 132).units.size(), 132u) << context;
}

TEST(DecodePlan, AnEmptyStepHasNoWork) {
  const DecodeShape shape{4, 2, 64, 0, kv::KvFormat::kBf16};
  for (const uint32_t sequences : {1U, 20U}) {
    const DecodePlan plan = planned(shape, std::vector(sequences, slot(0, 0)), 4);
    EXPECT_TRUE(plan.units.empty());
    EXPECT_EQ(plan.ranges, std::vector<uint32_t>(5, 0));
  }
}

TEST(DecodePlan, FewSequencesLeaveRoomForTheirNeighbours) {
  EXPECT_EQ(decode_blocks(1, 132), 132u);
  EXPECT_EQ(decode_blocks(4, 132), 132u);
  EXPECT_EQ(decode_blocks(8, 132), 264u);
}

// ---- several rows of a sequence ----

// What each column of a slot's rows reads, by (row, head of all): pages as stored, and the page
// read exactly (or none).
struct Column {
  uint32_t from = UINT32_MAX;
  uint32_t end = 0;
  uint32_t pages = 0;
  uint32_t exact = UINT32_MAX;
};
std::map<std::pair<uint32_t, uint32_t>, Column> columns_of(const DecodeShape& shape,
                                                           const DecodePlan& plan, uint32_t slot) {
  std::map<std::pair<uint32_t, uint32_t>, Column> out;
  for (const DecodeUnit& u : plan.units) {
    if (u.slot != slot) continue;
    const uint32_t end = std::min(u.rows * shape.group(), u.first_column + kDecodeColumns);
    for (uint32_t c = u.first_column; c < end; ++c) {
      Column& column =
          out[{u.row + c / shape.group(), u.kv_head * shape.group() + c % shape.group()}];
      if (u.pages > 0) column.from = std::min(column.from, u.first_page);
      column.end = std::max(column.end, u.first_page + u.pages);
      column.pages += u.pages;
      if (u.exact != 0) column.exact = u.start / 16;
    }
  }
  return out;
}

TEST(DecodePlan, RowsReadEveryPageThatTheySee) {
  std::vector<SequenceSlot> slots = {slot(0, 16),   slot(13, 8),  slot(4093, 5), slot(0, 0),
                                     slot(300, 16), slot(255, 2), slot(31, 1)};
  uint32_t first = 0;
  for (SequenceSlot& s : slots) {
    s.first_row = first;
    first += s.rows;
  }
  for (const uint32_t more : {0U, 14U}) {  // few sequences and many
    for (uint32_t i = 0; i < more; ++i) slots.push_back(slot(37 * i, 1 + i % 16));
    for (const kv::KvFormat format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4})
      for (const uint32_t window : {0U, 20U, 300U})
        for (const uint32_t group : {1U, 7U, 12U}) {
          const DecodeShape shape{2 * group, 2, 128, window, format};
          const DecodePlan plan = planned(shape, slots, 264);
          EXPECT_LE(plan.units.size(), limits_for(shape, slots, 264, 4100).units);
          for (uint32_t s = 0; s < 7; ++s) {
            const auto columns = columns_of(shape, plan, s);
            EXPECT_EQ(columns.size(), size_t{slots[s].rows} * shape.heads);
            for (const auto& [key, column] : columns) {
              const uint32_t position = slots[s].start + key.first - slots[s].first_row;
              const uint32_t own = position / 16;
              const uint32_t from = window == 0 || position < window ? 0 : position + 1 - window;
              const bool exact = format == kv::KvFormat::kInt4;
              EXPECT_EQ(column.exact, exact ? own : UINT32_MAX);
              const uint32_t end = own + (exact ? 0 : 1);
              if (from / 16 >= end) continue;
              EXPECT_LE(column.from, from / 16) << position;
              EXPECT_GE(column.end, end) << position;
              EXPECT_EQ(column.pages, column.end - column.from) << position;
              // Not much more, either: a page's width of rows at most.
              EXPECT_LE(column.end, end + 1);
              if (exact) {
                EXPECT_EQ(column.end, end);
              }
            }
          }
        }
  }
}

// Splits fall where they fall for one row, so that nothing is added up in another order.
TEST(DecodePlan, RowsAreCutWhereOneRowIs) {
  const DecodeShape shape{28, 4, 128, 0, kv::KvFormat::kBf16};
  for (const uint32_t start : {100U, 250U, 2040U, 3000U, 8000U}) {
    const DecodePlan rows = planned(shape, {slot(start, 8)}, 132);
    const DecodePlan last = planned(shape, {slot(start + 7)}, 132);
    for (const DecodeUnit& u : rows.units) {
      const auto same = std::ranges::find_if(last.units, [&](const DecodeUnit& v) {
        return v.kv_head == u.kv_head && v.split == u.split;
      });
      ASSERT_NE(same, last.units.end());
      EXPECT_EQ(u.first_page, same->first_page);
      if (u.split + 1 < u.splits) {
        EXPECT_EQ(u.pages, same->pages);
      }
    }
  }
}

// A step that grew past its limits would not fit the memory planned for it.
TEST(DecodePlan, LimitsHoldForEveryStep) {
  for (const uint32_t kv_heads : {1U, 4U, 8U})
    for (const uint32_t most : {100U, 1536U, 4096U, 32768U}) {
      const DecodeShape shape{32, kv_heads, 128, 300, kv::KvFormat::kBf16};
      const DecodeLimits limits =
          decode_limits(shape, {.sequences = 20, .rows = 20, .blocks = 264, .max_context = most});
      for (const uint32_t sequences : {1U, 4U, 16U, 17U, 20U})
        for (uint32_t context = 1; context <= most; context = context * 3 / 2 + 1)
          for (const uint32_t window : {0U, 300U}) {
            DecodeShape windowed = shape;
            windowed.window = window;
            const DecodePlan plan =
                planned(windowed, std::vector(sequences, slot(context - 1)), 264);
            EXPECT_LE(plan.units.size(), limits.units) << sequences << " x " << context;
          }
    }
}

}  // namespace
}  // namespace tandem::cuda
