// Host-side planning of the CUDA engine: no card needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/engine/cuda/buckets.h"
#include "common/engine/cuda/recorded_steps.h"
#include "common/engine/cuda/step_area.h"

namespace tandem::engine {
namespace {

using ::testing::ElementsAre;

TEST(DecodeBuckets, AreThoseOfTheDesignAndEndAtTheMost) {
  EXPECT_THAT(decode_buckets(1), ElementsAre(1));
  EXPECT_THAT(decode_buckets(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(decode_buckets(64), ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64));
  EXPECT_THAT(decode_buckets(100), ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100));
  EXPECT_THAT(decode_buckets(0), ElementsAre());
}

TEST(DecodeBuckets, EveryStepFitsTheSmallestThatHoldsIt) {
  for (const uint32_t most : {1U, 3U, 64U, 257U}) {
    const auto buckets = decode_buckets(most);
    for (uint32_t rows = 1; rows <= most; ++rows) {
      const size_t i = bucket_of(buckets, rows);
      ASSERT_LT(i, buckets.size());
      EXPECT_GE(buckets[i], rows);
      if (i > 0) {
        EXPECT_LT(buckets[i - 1], rows);
      }
    }
    EXPECT_EQ(bucket_of(buckets, most + 1), buckets.size());
  }
}

TEST(VerifyBuckets, AreThoseOfDecodingFromEightRowsOn) {
  EXPECT_THAT(verify_buckets(0), ElementsAre());
  EXPECT_THAT(verify_buckets(3), ElementsAre(8));
  EXPECT_THAT(verify_buckets(16), ElementsAre(8, 16));
  EXPECT_THAT(verify_buckets(20), ElementsAre(8, 16, 20));
}

TEST(StepLayout, PartsFollowEachOtherAlignedAndTheTablesComeLast) {
  const StepCounts counts{.rows = 5, .sequences = 3, .outputs = 2, .blocks = 7};
  const StepLayout layout(counts);
  const size_t starts[] = {layout.tokens, layout.positions, layout.row_sequence,
                           layout.slots,  layout.outputs,   layout.blocks};
  const size_t sizes[] = {20, 20, 20, 3 * sizeof(cuda::SequenceSlot), 8, 28};
  for (size_t i = 0; i < std::size(starts); ++i) {
    EXPECT_EQ(starts[i] % 16, 0u);
    const size_t end = i + 1 < std::size(starts) ? starts[i + 1] : layout.bytes;
    EXPECT_GE(end, starts[i] + sizes[i]);
    EXPECT_LT(end, starts[i] + sizes[i] + 16);
  }
}

// A recorded step reads fixed addresses: growing tables must not move anything else.
TEST(StepLayout, OnlyTheEndDependsOnTheTables) {
  const StepLayout small(StepCounts{.rows = 8, .sequences = 8, .outputs = 8, .blocks = 8});
  const StepLayout large(StepCounts{.rows = 8, .sequences = 8, .outputs = 8, .blocks = 8000});
  EXPECT_EQ(small.blocks, large.blocks);
  EXPECT_EQ(small.outputs, large.outputs);
  EXPECT_LT(small.bytes, large.bytes);
}

TEST(SlotOrder, PutsSequencesOfOneRowFirstAndKeepsTheirOrder) {
  StepView view;
  std::vector<SequenceView> sequences(5);
  const uint32_t rows[] = {3, 1, 7, 1, 1};
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i].rows = rows[i];
  view.sequences = sequences;
  const SlotOrder order(view);
  EXPECT_EQ(order.decoding, 3u);
  EXPECT_FALSE(order.several);
  EXPECT_THAT(order.sequence, ElementsAre(1, 3, 4, 0, 2));
}

TEST(SlotOrder, PutsSequencesOfFewRowsFirstWhileThereIsRoomForThem) {
  StepView view;
  std::vector<SequenceView> sequences(5);
  const uint32_t rows[] = {40, 1, 8, 3, 17};
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i].rows = rows[i];
  view.sequences = sequences;
  const SlotOrder few(view, {.each = 16, .together = 12});
  EXPECT_EQ(few.decoding, 3u);
  EXPECT_TRUE(few.several);
  EXPECT_THAT(few.sequence, ElementsAre(1, 2, 3, 0, 4));
  const SlotOrder less(view, {.each = 7, .together = 12});
  EXPECT_THAT(less.sequence, ElementsAre(1, 3, 0, 2, 4));
  EXPECT_TRUE(less.several);
  const SlotOrder full(view, {.each = 16, .together = 11});
  EXPECT_EQ(full.decoding, 1u);
  EXPECT_FALSE(full.several);
  EXPECT_THAT(full.sequence, ElementsAre(1, 0, 2, 3, 4));
}

// Sequences of these rows.
struct Shaped {
  explicit Shaped(const std::vector<uint32_t>& rows) {
    for (const uint32_t own : rows) {
      sequences.push_back({static_cast<uint32_t>(tokens.size()), own, 0, {}, 0});
      tokens.resize(tokens.size() + own);
    }
    positions.resize(tokens.size());
  }
  [[nodiscard]] StepView view() const { return {tokens, positions, sequences}; }
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  std::vector<SequenceView> sequences;
};

// Of an engine for so many sequences, which verify up to `each` rows: see EngineLimits.
RecordedSteps::Limits verifying(uint32_t each, uint32_t sequences) {
  return {.decoding = sequences,
          .few = {.each = each, .together = std::min(each * sequences, std::max(128U, sequences))},
          .sequences = 2 * sequences,
          .rows = 128};
}

bool all_decode(const StepView& view, const FewRows& few) {
  return SlotOrder(view, few).decoding == view.sequences.size();
}

TEST(RecordedSteps, AreOfTheKernelsThatStepsOfTheirShapeTake) {
  for (const uint32_t each : {2U, 3U, 4U, 7U, 16U})
    for (const uint32_t sequences : {1U, 2U, 3U, 5U, 64U}) {
      SCOPED_TRACE(testing::Message() << each << " rows, " << sequences << " sequences");
      const auto limits = verifying(each, sequences);
      const RecordedSteps steps(limits);
      EXPECT_FALSE(steps.verifying().empty());
      for (const uint32_t rows : steps.verifying()) {
        const DummyStep dummy(steps.verify_shape(rows), {});
        EXPECT_EQ(dummy.view().rows(), rows);
        EXPECT_EQ(dummy.positions.size(), rows);
        EXPECT_LE(dummy.sequences.size(), steps.sequences(rows));
        EXPECT_TRUE(SlotOrder(dummy.view(), limits.few).several) << rows;
        EXPECT_TRUE(all_decode(dummy.view(), limits.few)) << rows;
      }
      for (const uint32_t rows : steps.decoding()) {
        const DummyStep dummy(RecordedSteps::decode_shape(rows), {});
        EXPECT_EQ(dummy.view().rows(), rows);
        EXPECT_EQ(dummy.sequences.size(), rows);
        EXPECT_FALSE(SlotOrder(dummy.view(), limits.few).several) << rows;
      }
    }
}

TEST(RecordedSteps, TakeWhatTheyHaveRoomFor) {
  for (const uint32_t each : {2U, 3U, 4U, 7U, 16U})
    for (const uint32_t sequences : {1U, 2U, 3U, 5U}) {
      const auto limits = verifying(each, sequences);
      const RecordedSteps steps(limits);
      for (uint32_t first = 1; first <= each + 1; ++first)
        for (uint32_t others = 0; others <= 2 * sequences; ++others)
          for (const uint32_t other : {1U, 2U}) {
            std::vector<uint32_t> rows(1 + others, other);
            rows[0] = first;
            const Shaped step(rows);
            const StepView view = step.view();
            const auto choice = steps.choose(view);
            const bool verifies = view.rows() > rows.size();
            const uint32_t most = verifies ? limits.few.together : sequences;
            SCOPED_TRACE(testing::Message() << each << " x " << sequences << ": " << first
                                            << " rows and " << others << " times " << other);
            ASSERT_EQ(choice.has_value(),
                      first <= each && view.rows() <= most && rows.size() <= 2 * sequences);
            if (!choice) continue;
            EXPECT_EQ(choice->verifies, verifies);
            const uint32_t bucket =
                (verifies ? steps.verifying() : steps.decoding())[choice->index];
            EXPECT_GE(bucket, view.rows());
            EXPECT_LE(rows.size(), steps.sequences(bucket));
            EXPECT_EQ(SlotOrder(view, limits.few).several, verifies);
            EXPECT_TRUE(all_decode(view, limits.few));
          }
    }
}

TEST(RecordedSteps, AreNoneForVerificationUnlessAskedFor) {
  EXPECT_THAT(RecordedSteps(verifying(1, 4)).verifying(), ElementsAre());
  EXPECT_FALSE(RecordedSteps(verifying(1, 4)).choose(Shaped({2}).view()));
  EXPECT_FALSE(RecordedSteps().choose(Shaped({1}).view()));
}

}  // namespace
}  // namespace tandem::engine
