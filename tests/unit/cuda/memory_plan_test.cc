#include "common/cuda/memory_plan.h"

#include <gtest/gtest.h>

namespace tandem::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A 7B model, loaded on a card of 100 GiB of which 1 GiB is somebody else's.
MemoryRequest request() {
  MemoryRequest r;
  r.device = "device 0 (NVIDIA H200)";
  r.total_bytes = 100 * kGiB;
  r.parts = {{.name = "weights", .bytes = 14 * kGiB},
             {.name = "activations", .bytes = 2 * kGiB, .remedy = "lower max_batch_tokens"},
             {.name = "workspace", .bytes = 33 * kMiB}};
  r.free_bytes = 83 * kGiB - 33 * kMiB;
  r.reserve_bytes = kGiB;
  r.kv_block_bytes = 896 * 1024;
  r.kv_tail_bytes = 5 * kMiB;
  return r;
}

void expect_parts(const std::string& text, const std::vector<const char*>& parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
}

TEST(MemoryPlan, KvTakesWhatTheShareLeaves) {
  const auto blocks = plan_kv_blocks(request());
  ASSERT_TRUE(blocks) << blocks.error().to_string();
  // 90 GiB - 1 reserve - 14 - 2 - 33 MiB - 5 MiB = 74714 MiB by hand, and a block is 0.875 MiB.
  EXPECT_EQ(*blocks, 85387u);
}

// The same numbers before anything is loaded.
TEST(MemoryPlan, PartsThatAreStillToComeAreNotFree) {
  MemoryRequest r = request();
  r.free_bytes += 16 * kGiB + 33 * kMiB;
  r.taken = false;
  EXPECT_EQ(plan_kv_blocks(r).value(), 85387u);
  r.free_bytes = 15 * kGiB;
  const auto blocks = plan_kv_blocks(r);
  ASSERT_FALSE(blocks);
  expect_parts(blocks.error().detail,
               {"weights 14.0 GiB", "activations 2.00 GiB", "workspace 33.0 MiB",
                "together 17.0 GiB", "Allowed: 15.0 GiB", "15.0 GiB of 100.0 GiB are free"});
}

// Buffers of a transport that is opened once the pool is there.
TEST(MemoryPlan, WhatIsTakenLaterIsLeftOut) {
  MemoryRequest r = request();
  r.later = {{.name = "messages of nccl", .bytes = 875 * kMiB, .remedy = "use cuda_ipc"}};
  EXPECT_EQ(plan_kv_blocks(r).value(), 85387u - 1000u);  // a block is 0.875 MiB
  r.taken = false;
  r.free_bytes += 16 * kGiB + 33 * kMiB;
  EXPECT_EQ(plan_kv_blocks(r).value(), 85387u - 1000u);
  expect_parts(describe(r, 84387), {"weights 14.0 GiB", "messages of nccl 875.0 MiB"});
  r.free_bytes = 17 * kGiB + 100 * kMiB;
  const auto blocks = plan_kv_blocks(r);
  ASSERT_FALSE(blocks);
  expect_parts(blocks.error().detail, {"messages of nccl 875.0 MiB", "together 17.9 GiB",
                                       "use cuda_ipc (messages of nccl)"});
}

TEST(MemoryPlan, LessThanTheShareIsFree) {
  MemoryRequest r = request();
  r.free_bytes = 10 * kGiB;
  const auto blocks = plan_kv_blocks(r);
  ASSERT_TRUE(blocks);
  EXPECT_EQ(*blocks, (9 * kGiB - 5 * kMiB) / r.kv_block_bytes);
}

TEST(MemoryPlan, AConfiguredPoolIsTakenAtItsWord) {
  MemoryRequest r = request();
  r.kv_blocks = 1000;
  EXPECT_EQ(plan_kv_blocks(r).value(), 1000u);
  r.kv_blocks = 80 * kGiB / r.kv_block_bytes;  // above the share, below what is free
  EXPECT_EQ(plan_kv_blocks(r).value(), r.kv_blocks);
}

TEST(MemoryPlan, ThePoolNeverExceedsWhatBlockIdsReach) {
  MemoryRequest r = request();
  r.kv_most_blocks = 77;
  EXPECT_EQ(plan_kv_blocks(r).value(), 77u);
}

TEST(MemoryPlan, WhatDoesNotFitIsNamedPartByPart) {
  MemoryRequest r = request();
  r.total_bytes = 18 * kGiB;
  r.free_bytes = kGiB / 2;
  const auto blocks = plan_kv_blocks(r);
  ASSERT_FALSE(blocks);
  EXPECT_EQ(blocks.error().code, ErrorCode::kResourceExhausted);
  expect_parts(blocks.error().detail,
               {"device 0 (NVIDIA H200)", "weights 14.0 GiB", "activations 2.00 GiB",
                "workspace 33.0 MiB", "open KV pages 5.0 MiB",
                "KV cache at least 3.5 MiB (4 blocks)", "reserve for CUDA itself 1.00 GiB",
                "together 17.0 GiB", "Allowed: 16.2 GiB", "16.5 GiB of 18.0 GiB are free or",
                "gpu_memory_utilization is 0.90", "lower max_batch_tokens (activations)"});
}

TEST(MemoryPlan, TwoProcessesOnOneCard) {
  MemoryRequest r = request();
  r.free_bytes = kGiB / 4;
  r.neighbours = {{.pid = 4711, .name = "tandem-decode", .bytes = 80 * kGiB}};
  const auto blocks = plan_kv_blocks(r);
  ASSERT_FALSE(blocks);
  expect_parts(blocks.error().detail,
               {"tandem-decode (pid 4711) 80.0 GiB", "16.3 GiB of 100.0 GiB are free or",
                "end what else uses this one"});
}

TEST(MemoryPlan, ManyConfiguredBlocksNameTheKeysToLower) {
  MemoryRequest r = request();
  r.kv_blocks = uint64_t{1} << 24;
  const auto blocks = plan_kv_blocks(r);
  ASSERT_FALSE(blocks);
  expect_parts(blocks.error().detail, {"lower kv.memory or kv.blocks", "16777216 blocks"});
}

TEST(MemoryPlan, ALostRaceSaysThatAnotherProcessTookTheMemory) {
  const MemoryRequest r = request();
  const Error error = lost_race(r, 85387, 3 * kGiB);
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  expect_parts(error.detail,
               {"weights 14.0 GiB", "85387 blocks",
                "19.0 GiB of 100.0 GiB are free or this process's", "Another process"});
}

TEST(MemoryPlan, ExtremesDoNotWrap) {
  MemoryRequest r = request();
  r.free_bytes = 0;
  EXPECT_FALSE(plan_kv_blocks(r));
  r = request();
  r.reserve_bytes = 200 * kGiB;
  EXPECT_FALSE(plan_kv_blocks(r));
  r = request();
  r.utilization = 7.0;
  EXPECT_TRUE(plan_kv_blocks(r));
  r = request();
  r.kv_block_bytes = 0;
  EXPECT_FALSE(plan_kv_blocks(r));
}

}  // namespace
}  // namespace tandem::cuda
