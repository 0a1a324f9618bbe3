#include <gtest/gtest.h>

#include "common/cuda/device_info.h"
#include "common/engine/cuda/cuda_ops.h"
#include "tests/support/backends.h"

namespace tandem::testing {
namespace {

std::unique_ptr<engine::Ops> create_cuda(const model::ModelConfig& model,
                                         const Backend::Limits& limits) {
  engine::CudaOptions options;
  options.max_rows = limits.max_rows;
  options.max_context = limits.positions;
  options.max_sequences = limits.sequences;
  options.max_verify_rows = limits.verify_rows;
  if (limits.fp8_weights) options.quantization = engine::Quantization::kFp8;
  // As nodes do: all memory is planned and taken before a weight is read.
  options.kv_layout = kv::KvLayout{model.layers, model.kv_heads, model.head_dim, limits.format};
  options.kv_tails = options.kv_layout->needs_tail() ? limits.sequences : 0;
  auto ops = engine::create_cuda_ops(options, model);
  EXPECT_TRUE(ops) << ops.error().to_string();
  return ops ? std::move(*ops) : nullptr;
}

}  // namespace

// Empty where there is no card: the suites then say that they were not instantiated.
std::vector<Backend> backends() {
  const auto devices = cuda::list_devices();
  if (!devices || devices->empty()) return {};
  Backend b;
  b.name = "cuda";
  b.create = [](DType, const model::ModelConfig& model, const Backend::Limits& limits) {
    return create_cuda(model, limits);
  };
  b.types = {DType::kBf16};
  b.formats = {kv::KvFormat::kBf16, kv::KvFormat::kFp8E4M3, kv::KvFormat::kInt8,
               kv::KvFormat::kK8V4, kv::KvFormat::kInt4};
  b.fast = true;
  b.has_fp8 = true;
  // Other shapes of matrix products add up in another order, and activations are bf16.
  b.chunk_tolerance = 2e-2;
  b.same_bits_rows = 8;  // above, other kernels multiply
  b.single_prompt_slack = 1.5;
  return {b};
}

// So that a run without a card shows as a skip.
TEST(CudaBackend, IsHere) {
  if (backends().empty()) GTEST_SKIP() << "no CUDA device here";
}

}  // namespace tandem::testing
