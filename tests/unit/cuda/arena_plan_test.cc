#include "common/cuda/arena_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A 7B model on a card of 100 GiB, of which 99 are free.
ArenaRequest request() {
  ArenaRequest r;
  r.device = "device 0 (NVIDIA H200)";
  r.total_bytes = 100 * kGiB;
  r.free_bytes = 99 * kGiB;
  r.utilization = 0.9;
  r.reserve_bytes = kGiB;
  r.parts = {{.name = "weights", .bytes = 14 * kGiB},
             {.name = "prefill activations",
              .bytes = 2 * kGiB + 1,
              .remedy = "lower max_batch_tokens",
              .lendable = true},
             {.name = "workspace", .bytes = 33 * kMiB}};
  r.kv_block_bytes = 896 * 1024;
  r.kv_tail_bytes = 5 * kMiB;
  return r;
}

void expect_sound(const ArenaRequest& r, const ArenaPlan& plan) {
  std::vector<ArenaSpan> spans = plan.parts;
  spans.push_back(plan.kv_pages);
  spans.push_back(plan.kv_tails);
  std::sort(spans.begin(), spans.end(), [](const ArenaSpan& a, const ArenaSpan& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t end = 0;
  for (const ArenaSpan& span : spans) {
    EXPECT_EQ(span.offset % kArenaAlignment, 0u);
    EXPECT_GE(span.offset, end) << "spans overlap";
    end = span.offset + span.bytes;
  }
  EXPECT_LE(end, plan.bytes);
  for (size_t i = 0; i < r.parts.size(); ++i) EXPECT_EQ(plan.parts[i].bytes, r.parts[i].bytes);
  EXPECT_EQ(plan.kv_pages.bytes, plan.kv_blocks * r.kv_block_bytes);
  EXPECT_EQ(plan.kv_tails.bytes, r.kv_tail_bytes);
  EXPECT_LE(plan.bytes + r.reserve_bytes, r.free_bytes);
}

TEST(ArenaPlan, KvTakesWhatTheShareLeaves) {
  const ArenaRequest r = request();
  const auto plan = plan_arena(r);
  ASSERT_TRUE(plan) << plan.error().to_string();
  expect_sound(r, *plan);
  // 90 GiB - 1 reserve - 14 - 2 - 33 MiB - 5 MiB = 74714 MiB by hand, less the roundings: one block
  // is 0.875 MiB, so 85387 or 85386.
  EXPECT_NEAR(static_cast<double>(plan->kv_blocks), 74714.0 / 0.875, 2.0);
  EXPECT_LE(plan->bytes + r.reserve_bytes, 90 * kGiB);
  EXPECT_GT(plan->bytes + r.reserve_bytes + 2 * r.kv_block_bytes, 90 * kGiB) << "wasted";
}

TEST(ArenaPlan, LessThanTheShareIsFree) {
  ArenaRequest r = request();
  r.free_bytes = 40 * kGiB;
  const auto plan = plan_arena(r);
  ASSERT_TRUE(plan);
  expect_sound(r, *plan);
  EXPECT_GT(plan->bytes, 38 * kGiB);
}

TEST(ArenaPlan, WeightsThatAreLoadedAlreadyCountAsThisProcesss) {
  ArenaRequest r = request();
  const auto before = plan_arena(r);
  r.taken_bytes = 14 * kGiB;
  r.free_bytes -= 14 * kGiB;
  const auto after = plan_arena(r);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(after->kv_blocks, before->kv_blocks);
}

TEST(ArenaPlan, PrefillMemoryLiesBehindTheKvPool) {
  const ArenaRequest r = request();
  const auto plan = plan_arena(r);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->lendable.offset, plan->parts[1].offset);
  EXPECT_GE(plan->lendable.bytes, r.parts[1].bytes);
  EXPECT_LT(plan->lendable.offset - (plan->kv_pages.offset + plan->kv_pages.bytes),
            kArenaAlignment);
  EXPECT_EQ(plan->lendable.offset + plan->lendable.bytes, plan->bytes);
}

TEST(ArenaPlan, AConfiguredPoolIsTakenAtItsWord) {
  ArenaRequest r = request();
  r.kv_blocks = 1000;
  auto plan = plan_arena(r);
  ASSERT_TRUE(plan);
  expect_sound(r, *plan);
  EXPECT_EQ(plan->kv_blocks, 1000u);
  // More than the share, less than what is free.
  r.kv_blocks = 80 * kGiB / r.kv_block_bytes;
  plan = plan_arena(r);
  ASSERT_TRUE(plan) << plan.error().to_string();
  expect_sound(r, *plan);
}

TEST(ArenaPlan, ThePoolNeverExceedsWhatBlockIdsReach) {
  ArenaRequest r = request();
  r.kv_most_blocks = 77;
  const auto plan = plan_arena(r);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->kv_blocks, 77u);
}

TEST(ArenaPlan, WhatDoesNotFitIsNamedPartByPart) {
  ArenaRequest r = request();
  r.total_bytes = 16 * kGiB;
  r.free_bytes = 15 * kGiB + kGiB / 2;
  const auto plan = plan_arena(r);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kResourceExhausted);
  const std::string& text = plan.error().detail;
  for (const char* part :
       {"device 0 (NVIDIA H200)", "weights 14.0 GiB", "prefill activations 2.00 GiB",
        "workspace 33.0 MiB", "KV tails 5.0 MiB", "KV cache at least 3.5 MiB (4 blocks)",
        "reserve for CUDA itself 1.00 GiB", "together 17.0 GiB", "Allowed: 14.4 GiB",
        "15.5 GiB of 16.0 GiB are free", "gpu_memory_utilization is 0.90",
        "lower max_batch_tokens (prefill activations)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
  }
}

TEST(ArenaPlan, TwoProcessesOnOneCard) {
  ArenaRequest r = request();
  r.free_bytes = 10 * kGiB;
  r.neighbours = {{.pid = 4711, .name = "tandem-decode", .bytes = 88 * kGiB}};
  const auto plan = plan_arena(r);
  ASSERT_FALSE(plan);
  for (const char* part : {"tandem-decode (pid 4711) 88.0 GiB", "10.0 GiB of 100.0 GiB are free",
                           "end what else uses this one"}) {
    EXPECT_NE(plan.error().detail.find(part), std::string::npos) << plan.error().detail;
  }
}

TEST(ArenaPlan, ManyConfiguredBlocksNameTheKeysToLower) {
  ArenaRequest r = request();
  r.kv_blocks = uint64_t{1} << 24;
  const auto plan = plan_arena(r);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().detail.find("lower kv.memory or kv.blocks"), std::string::npos);
  EXPECT_NE(plan.error().detail.find("16777216 blocks"), std::string::npos);
}

TEST(ArenaPlan, ALostRaceSaysThatAnotherProcessTookTheMemory) {
  const ArenaRequest r = request();
  const auto plan = plan_arena(r);
  ASSERT_TRUE(plan);
  const Error error = arena_race(r, *plan, 3 * kGiB);
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  for (const char* part : {"weights 14.0 GiB", "3.00 GiB of 100.0 GiB are free", "Another process"})
    EXPECT_NE(error.detail.find(part), std::string::npos) << error.detail;
}

TEST(ArenaPlan, ExtremesDoNotWrap) {
  ArenaRequest r = request();
  r.free_bytes = 0;
  EXPECT_FALSE(plan_arena(r));
  r = request();
  r.reserve_bytes = 200 * kGiB;
  EXPECT_FALSE(plan_arena(r));
  r = request();
  r.utilization = 7.0;
  ASSERT_TRUE(plan_arena(r));
  r = request();
  r.kv_block_bytes = 0;
  EXPECT_FALSE(plan_arena(r));
}

}  // namespace
}  // namespace tandem::cuda
