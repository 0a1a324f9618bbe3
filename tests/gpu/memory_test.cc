#include "common/cuda/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/cuda/device.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/engine.h"
#include "common/model/checkpoint.h"
#include "tests/gpu/card.h"
#include "tests/support/test_data.h"

namespace tandem::engine {
namespace {

using CudaMemory = cuda::CardTest;

struct Loaded {
  std::unique_ptr<model::Checkpoint> checkpoint;
  std::unique_ptr<Ops> ops;
  kv::KvLayout layout;
  std::string error;
};

Loaded load(bool planned = false, uint64_t kv_blocks = 0,
            Quantization quantization = Quantization::kNone) {
  Loaded result;
  result.checkpoint = std::move(model::Checkpoint::open(test_data("golden/qwen2")).value());
  const model::ModelConfig& m = result.checkpoint->config();
  CudaOptions options;
  options.max_rows = 64;
  options.max_context = 256;
  options.max_sequences = 4;
  result.layout = {.layers = m.layers,
                   .kv_heads = m.kv_heads,
                   .head_dim = m.head_dim,
                   .format = kv::KvFormat::kBf16};
  if (planned) options.kv_layout = result.layout;
  options.kv_blocks = kv_blocks;
  options.quantization = quantization;
  auto ops = create_cuda_ops(options, m);
  if (ops) result.ops = std::move(*ops);
  result.error = ops ? std::string() : ops.error().detail;
  return result;
}

TEST_F(CudaMemory, APoolThatDoesNotFitIsRefusedPartByPart) {
  Loaded l = load();
  ASSERT_TRUE(l.ops);
  const auto pool = l.ops->create_kv_memory(l.layout, 1U << 30, 0);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
  for (const char* part : {"device 0", "workspace", "KV cache", "1073741824 blocks", "kv.memory"})
    EXPECT_NE(pool.error().detail.find(part), std::string::npos) << pool.error().detail;
  // And the card is as usable as before.
  const auto limit = l.ops->kv_memory_limit(l.layout);
  ASSERT_TRUE(limit) << limit.error().to_string();
  EXPECT_GT(limit->value_or(0), uint64_t{1} << 30);
}

TEST_F(CudaMemory, ACardThatOthersHaveFilledIsTold) {
  Loaded l = load();
  ASSERT_TRUE(l.ops);
  ASSERT_TRUE(l.ops->kv_memory_limit(l.layout));  // takes the workspace
  size_t free = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free, &total));
  const auto others = cuda::DeviceBuffer::create(free - (size_t{64} << 20));
  ASSERT_TRUE(others) << others.error().to_string();
  const auto limit = l.ops->kv_memory_limit(l.layout);
  ASSERT_FALSE(limit);
  EXPECT_EQ(limit.error().code, ErrorCode::kResourceExhausted);
  for (const char* part : {"the model does not fit", "are free or this process's", "end what else"})
    EXPECT_NE(limit.error().detail.find(part), std::string::npos) << limit.error().detail;
}

// With the pool's layout known, everything is planned before a weight is read and taken at once.
TEST_F(CudaMemory, APlannedEngineTakesNothingMoreWhileItLoads) {
  for (const Quantization quantization : {Quantization::kNone, Quantization::kFp8}) {
    Loaded l = load(true, 0, quantization);
    ASSERT_TRUE(l.ops) << l.error;
    size_t before = 0, after = 0, total = 0;
    ASSERT_CUDA(cudaMemGetInfo(&before, &total));
    const auto engine = Engine::create(*l.checkpoint, *l.ops, {.max_rows = 64, .max_context = 256});
    ASSERT_TRUE(engine) << engine.error().to_string();
    ASSERT_TRUE(l.ops->kv_memory_limit(l.layout));  // the workspace
    ASSERT_CUDA(cudaMemGetInfo(&after, &total));
    // An arena that was too small would have grown by 64 MiB.
    EXPECT_LT(before - std::min(before, after), size_t{32} << 20);
  }
}

TEST_F(CudaMemory, WhatDoesNotFitIsRefusedBeforeAWeightIsRead) {
  const Loaded l = load(true, 1U << 30);
  ASSERT_FALSE(l.ops);
  for (const char* part : {"weights", "activations", "workspace", "logits", "1073741824 blocks"})
    EXPECT_NE(l.error.find(part), std::string::npos) << l.error;
}

// What a CPU tail and transports through the host do with pages: scattered pieces out and back in,
// waited for and enqueued, tails included.
TEST_F(CudaMemory, PagesAndTailsComeBackAsTheyWere) {
  Loaded l = load();
  ASSERT_TRUE(l.ops);
  kv::KvLayout layout = l.layout;
  layout.format = kv::KvFormat::kInt4;
  ASSERT_TRUE(layout.needs_tail());
  const auto memory = l.ops->create_kv_memory(layout, 64, 4);
  ASSERT_TRUE(memory) << memory.error().to_string();
  ASSERT_EQ((*memory)->device(), "cuda:0");
  const size_t piece = (*memory)->tail_bytes() / 256;
  auto there = (*memory)->host_buffer(64 * piece);
  auto back = (*memory)->host_buffer(64 * piece);
  ASSERT_TRUE(there && back);
  const std::span<std::byte> sent = (*there)->bytes();
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 131 >> 3);
  std::vector<kv::PageMemory::Piece> in;
  std::vector<kv::PageMemory::Piece> out;
  const size_t whole = ((*memory)->bytes() - (*memory)->tail_bytes()) / piece;
  for (size_t i = 0; i < 64; ++i) {
    const size_t at = i * 7 % whole;  // scattered, none twice
    std::byte* page =
        i < 60 ? (*memory)->pages() + at * piece : (*memory)->tails() + (63 - i) * 64 * piece;
    in.push_back({page, sent.data() + i * piece, piece});
    out.push_back({page, (*back)->bytes().data() + i * piece, piece});
  }
  ASSERT_GE(whole, 7 * 60U);
  ASSERT_TRUE((*memory)->from_host(in));
  ASSERT_TRUE((*memory)->to_host(out));
  EXPECT_TRUE(std::ranges::equal(sent, (*back)->bytes()));

  std::ranges::reverse(sent);
  const auto in_ticket = (*memory)->start_from_host(in);
  const auto out_ticket = (*memory)->start_to_host(out);
  ASSERT_TRUE(in_ticket && out_ticket);
  EXPECT_LT(*in_ticket, *out_ticket);
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + std::chrono::seconds(20);
  for (bool finished = false; !finished;) {
    ASSERT_LT(clock.now(), give_up) << "the copies do not end";
    const auto done = (*memory)->done(*out_ticket);
    ASSERT_TRUE(done) << done.error().to_string();
    finished = *done;
  }
  EXPECT_TRUE(std::ranges::equal(sent, (*back)->bytes()));
}

}  // namespace
}  // namespace tandem::engine
