#include "common/cuda/memory.h"

#include <gtest/gtest.h>

#include "common/cuda/device.h"
#include "common/engine/cuda/cuda_ops.h"
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
};

Loaded load() {
  Loaded result;
  result.checkpoint = std::move(model::Checkpoint::open(test_data("golden/qwen2")).value());
  const model::ModelConfig& m = result.checkpoint->config();
  CudaOptions options;
  options.max_rows = 64;
  options.max_context = 256;
  options.max_sequences = 4;
  auto ops = create_cuda_ops(options, m);
  EXPECT_TRUE(ops) << ops.error().to_string();
  if (ops) result.ops = std::move(*ops);
  result.layout = {.layers = m.layers,
                   .kv_heads = m.kv_heads,
                   .head_dim = m.head_dim,
                   .format = kv::KvFormat::kBf16};
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

}  // namespace
}  // namespace tandem::engine
