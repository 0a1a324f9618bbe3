#include "common/engine/cuda/sampling/sample_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/cuda/sampling/history_slots.h"

namespace tandem::engine {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Upload {
  explicit Upload(size_t row_room = 8, size_t bias_room = 10) : rows(row_room), biases(bias_room) {}
  SampleBatch batch(uint32_t vocab = 1000) { return {vocab, 20, rows, biases}; }
  std::vector<cuda::SampleRow> rows;
  std::vector<cuda::SampleBias> biases;
};

const std::vector<TokenId> kTokens = {5, 6, 7, 8, 9};

cuda::SampleRow packed(const SamplingParams& params) {
  Upload memory;
  SampleBatch batch = memory.batch();
  EXPECT_TRUE(batch.add(3, params, {kTokens, 2}, 4).has_value());
  return batch.rows().front();
}

TEST(SampleBatch, CarriesEveryParameter) {
  SamplingParams p;
  p.temperature = 0.5F;
  p.top_k = 50;
  p.top_p = 0.9F;
  p.min_p = 0.25F;
  p.repetition_penalty = 1.1F;
  p.presence_penalty = 0.2F;
  p.frequency_penalty = 0.3F;
  p.seed = 0x123456789abcdefULL;
  p.logprobs = 7;
  const cuda::SampleRow row = packed(p);
  EXPECT_EQ(row.mode, cuda::SampleMode::kSample);
  EXPECT_EQ(row.source, 3u);
  EXPECT_EQ(row.history, 4u);
  EXPECT_EQ(row.length, 5u);
  EXPECT_EQ(row.prompt, 2u);
  EXPECT_EQ(row.inverse, 2.0F);
  EXPECT_EQ(row.top_k, 50u);
  EXPECT_DOUBLE_EQ(row.top_share, static_cast<double>(0.9F));
  EXPECT_NEAR(row.min_p_offset, std::log(0.25) / 2, 1e-6);  // logits, not nats
  EXPECT_EQ(row.repetition, 1.1F);
  EXPECT_EQ(row.presence, 0.2F);
  EXPECT_EQ(row.frequency, 0.3F);
  EXPECT_EQ(row.seed, 0x123456789abcdefULL);
  EXPECT_EQ(row.logprobs, 7);
}

TEST(SampleBatch, OnlyWhatASequenceGoesOnWithIsAppended) {
  const auto appends = [](const TokenHistory& history, uint32_t slot) {
    Upload memory;
    SampleBatch batch = memory.batch();
    EXPECT_TRUE(batch.add(0, {}, history, slot).has_value());
    return batch.rows().front().appends;
  };
  EXPECT_EQ(appends({kTokens, 2, 7}, 4), 1u);
  EXPECT_EQ(appends({kTokens, 2, 7}, cuda::kNoHistory), 0u);
  EXPECT_EQ(appends({kTokens, 2, 7, 3}, 4), 0u);
}

TEST(SampleBatch, WhatIsOffStaysOff) {
  const cuda::SampleRow row = packed({});
  EXPECT_EQ(row.top_k, 0u);
  EXPECT_EQ(row.top_share, 1.0);
  EXPECT_EQ(row.min_p_offset, -kInf);
  EXPECT_EQ(row.logprobs, -1);
  EXPECT_EQ(row.bias_count, 0u);
  SamplingParams p;
  p.top_k = 1000;  // the whole vocabulary
  p.top_p = kNan;
  p.min_p = kNan;
  const cuda::SampleRow odd = packed(p);
  EXPECT_EQ(odd.top_k, 0u);
  EXPECT_EQ(odd.top_share, 1.0);
  EXPECT_EQ(odd.min_p_offset, -kInf);
}

TEST(SampleBatch, ExtremeTemperaturesAreGreedyOrFlat) {
  SamplingParams p;
  for (const float t : {0.0F, 1e-6F, -1.0F, kNan}) {
    p.temperature = t;
    EXPECT_EQ(packed(p).inverse, 0) << t;
  }
  p.temperature = kInf;
  EXPECT_EQ(packed(p).inverse, 1.0F / 1e30F);
  p = {};
  p.top_p = -1;
  EXPECT_EQ(packed(p).top_share, 0);
  p.min_p = 2;
  EXPECT_EQ(packed(p).min_p_offset, 0);
}

TEST(SampleBatch, SortsBiasesByIdAndKeepsTheOrderOfEqualOnes) {
  Upload memory;
  SampleBatch batch = memory.batch();
  SamplingParams p;
  p.logit_bias = {{9, 1.0F}, {2, 5.0F}, {9, 2.0F}, {-1, 3.0F}, {1000, 3.0F}, {2, 4.0F}};
  ASSERT_TRUE(batch.add(0, {}, {kTokens, 5}, cuda::kNoHistory).has_value());
  ASSERT_TRUE(batch.add(1, p, {kTokens, 5}, cuda::kNoHistory).has_value());
  const cuda::SampleRow& row = batch.rows()[1];
  EXPECT_EQ(row.bias_first, 0u);
  ASSERT_EQ(row.bias_count, 4u);
  std::vector<std::pair<int, float>> got;
  for (const auto& b : batch.biases()) got.emplace_back(b.id, b.value);
  EXPECT_THAT(got, ElementsAre(std::pair(2, 5.0F), std::pair(2, 4.0F), std::pair(9, 1.0F),
                               std::pair(9, 2.0F)));
}

TEST(SampleBatch, AFullBatchSaysSoAndAddsNothing) {
  Upload memory(2, 3);
  SampleBatch batch = memory.batch();
  SamplingParams p;
  p.logit_bias = {{1, 1.0F}, {2, 1.0F}};
  ASSERT_TRUE(batch.add(0, p, {kTokens, 5}, cuda::kNoHistory).has_value());
  const Status biases = batch.add(1, p, {kTokens, 5}, cuda::kNoHistory);
  ASSERT_FALSE(biases.has_value());
  EXPECT_EQ(biases.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(batch.rows().size(), 1u);
  EXPECT_EQ(batch.biases().size(), 2u);
  ASSERT_TRUE(batch.add_score(1, 999, 0).has_value());
  const Status rows = batch.add_score(1, 999, 0);
  ASSERT_FALSE(rows.has_value());
  EXPECT_EQ(rows.error().code, ErrorCode::kResourceExhausted);
  batch.clear();
  EXPECT_TRUE(batch.rows().empty());
  p.logit_bias.assign(4, {1, 1.0F});  // can never fit
  const Status never = batch.add(0, p, {kTokens, 5}, cuda::kNoHistory);
  ASSERT_FALSE(never.has_value());
  EXPECT_EQ(never.error().code, ErrorCode::kInvalidArgument);
}

TEST(SampleBatch, ScoresAndPadding) {
  Upload memory;
  SampleBatch batch = memory.batch(10);
  ASSERT_TRUE(batch.add_score(7, 9, 15).has_value());
  EXPECT_FALSE(batch.add_score(7, 10, 0).has_value());
  EXPECT_FALSE(batch.add_score(7, -1, 0).has_value());
  batch.pad(4);
  ASSERT_EQ(batch.rows().size(), 4u);
  EXPECT_EQ(batch.rows()[0].mode, cuda::SampleMode::kScore);
  EXPECT_EQ(batch.rows()[0].token, 9);
  EXPECT_EQ(batch.rows()[0].logprobs, 10);  // there are no more
  EXPECT_EQ(batch.rows()[3].mode, cuda::SampleMode::kSkip);
  Upload big;
  SampleBatch wide = big.batch(1000);
  const Status too_many = wide.add_score(0, 1, 21);
  ASSERT_FALSE(too_many.has_value());
  EXPECT_EQ(too_many.error().code, ErrorCode::kInvalidArgument);
}

TEST(SamplingPlan, CoversEveryVocabularyWithinABlocksMemory) {
  constexpr uint32_t kSharedLimit = 227u << 10;  // of a block on sm_90
  for (const uint32_t vocab : {1u, 127u, 4096u, 4097u, 16385u, 152064u, 262144u, 393216u}) {
    const cuda::SamplingPlan plan = cuda::plan_sampling(vocab);
    EXPECT_GE(uint64_t{plan.cluster} * plan.slice, vocab);
    EXPECT_EQ(plan.slice % cuda::kSampleGroup, 0u);
    EXPECT_LE(plan.shared_bytes + 1024, kSharedLimit);
  }
  EXPECT_LE(cuda::plan_sampling(152064).shared_bytes, 113u << 10);  // two blocks an SM
  EXPECT_EQ(cuda::plan_sampling(0).cluster, 0u);
  EXPECT_EQ(cuda::plan_sampling(393217).cluster, 0u);
}

TEST(HistorySlots, UploadsAPromptOnceAndThenNothing) {
  HistorySlots slots(2, 100);
  std::vector<TokenId> tokens = {1, 2, 3};
  slots.begin_step();
  auto up = slots.acquire({tokens, 3, 7});
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->from, 0u);
  EXPECT_THAT(std::vector(up->tokens.begin(), up->tokens.end()), ElementsAre(1, 2, 3));
  const uint32_t slot = up->slot;
  slots.drawn(slot, 4);
  tokens.push_back(4);
  slots.begin_step();
  up = slots.acquire({tokens, 3, 7});
  EXPECT_EQ(up->slot, slot);
  EXPECT_TRUE(up->tokens.empty());
  slots.drawn(slot, 5);
  // The sequence went on with another token than the drawn one, and two more.
  tokens.insert(tokens.end(), {9, 10, 11});
  slots.begin_step();
  up = slots.acquire({tokens, 3, 7});
  EXPECT_EQ(up->from, 4u);
  EXPECT_THAT(std::vector(up->tokens.begin(), up->tokens.end()), ElementsAre(9, 10, 11));
}

// Three rows: token 4, which is no guess, and guesses 5 and 6.
TEST(HistorySlots, GuessesShareASlotAndAreForgottenAfterTheStep) {
  HistorySlots slots(2, 100);
  std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  const auto verify = [&](size_t settled) {
    slots.begin_step();
    std::vector<TokenId> uploaded;
    std::optional<uint32_t> slot;
    for (size_t length = settled; length <= tokens.size(); ++length) {
      const auto up = slots.acquire({std::span(tokens).first(length), 3, 7, settled});
      EXPECT_TRUE(up.has_value());
      EXPECT_EQ(slot.value_or(up->slot), up->slot);
      slot = up->slot;
      EXPECT_EQ(up->from + up->tokens.size(), length);
      uploaded.insert(uploaded.end(), up->tokens.begin(), up->tokens.end());
    }
    return uploaded;
  };
  EXPECT_THAT(verify(4), ElementsAre(1, 2, 3, 4, 5, 6));
  // 5 was right, 6 was not.
  tokens = {1, 2, 3, 4, 5, 7, 8, 9};
  EXPECT_THAT(verify(6), ElementsAre(5, 7, 8, 9));
  // Back to a token a step, behind wrong guesses.
  tokens = {1, 2, 3, 4, 5, 7, 6};
  slots.begin_step();
  const auto up = slots.acquire({tokens, 3, 7});
  EXPECT_EQ(up->from, 6u);
  EXPECT_THAT(std::vector(up->tokens.begin(), up->tokens.end()), ElementsAre(6));
  slots.drawn(up->slot, 10);
  tokens.push_back(10);
  slots.begin_step();
  EXPECT_TRUE(slots.acquire({tokens, 3, 7})->tokens.empty());
}

TEST(HistorySlots, ACutSequenceUploadsWhatFollowsTheCut) {
  HistorySlots slots(2, 100);
  std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  slots.begin_step();
  ASSERT_TRUE(slots.acquire({tokens, 3, 7}).has_value());
  tokens.resize(3);
  slots.begin_step();
  EXPECT_TRUE(slots.acquire({tokens, 3, 7})->tokens.empty());
  tokens.push_back(8);
  slots.begin_step();
  const auto up = slots.acquire({tokens, 3, 7});
  EXPECT_EQ(up->from, 3u);
  EXPECT_THAT(std::vector(up->tokens.begin(), up->tokens.end()), ElementsAre(8));
}

TEST(HistorySlots, EvictsTheLeastRecentlyUsedButNotWithinAStep) {
  HistorySlots slots(2, 100);
  const std::vector<TokenId> tokens = {1, 2};
  slots.begin_step();
  const uint32_t a = slots.acquire({tokens, 2, 1})->slot;
  slots.begin_step();
  const uint32_t b = slots.acquire({tokens, 2, 2})->slot;
  EXPECT_NE(a, b);
  slots.begin_step();
  EXPECT_EQ(slots.acquire({tokens, 2, 3})->slot, a);
  EXPECT_EQ(slots.acquire({tokens, 2, 2})->slot, b);
  const auto full = slots.acquire({tokens, 2, 4});
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kResourceExhausted);
  slots.begin_step();
  EXPECT_EQ(slots.acquire({tokens, 2, 1})->tokens.size(), 2u);  // was evicted
}

TEST(HistorySlots, UnnamedSequencesAndForgottenOnesAreUploadedWhole) {
  HistorySlots slots(2, 4);
  const std::vector<TokenId> tokens = {1, 2};
  slots.begin_step();
  const uint32_t first = slots.acquire({tokens, 2})->slot;
  const auto second = slots.acquire({tokens, 2});
  EXPECT_NE(second->slot, first);
  EXPECT_EQ(second->tokens.size(), 2u);
  slots.begin_step();
  ASSERT_TRUE(slots.acquire({tokens, 2, 5}).has_value());
  slots.forget();
  slots.begin_step();
  EXPECT_EQ(slots.acquire({tokens, 2, 5})->tokens.size(), 2u);
  const std::vector<TokenId> long_one(5);
  const auto refused = slots.acquire({long_one, 2, 5});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(SampleBatch, HistoryIsNeededForPenaltiesOnly) {
  SamplingParams p;
  EXPECT_FALSE(needs_history(p));
  p.repetition_penalty = 0;  // off, as in engine::sample()
  EXPECT_FALSE(needs_history(p));
  p.repetition_penalty = 1.05F;
  EXPECT_TRUE(needs_history(p));
  p = {};
  p.presence_penalty = -0.5F;
  EXPECT_TRUE(needs_history(p));
  p = {};
  p.frequency_penalty = 0.5F;
  EXPECT_TRUE(needs_history(p));
}

}  // namespace
}  // namespace tandem::engine
