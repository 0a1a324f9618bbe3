#pragma once

#include <string>

#include "common/cuda/cublas_lt.h"
#include "common/cuda/memory.h"
#include "common/engine/cuda/bench/bench_card.h"
#include "common/engine/cuda/linear_wide.h"
#include "kernels/cuda/linear_small.h"

// What measurements of projections share.
namespace tandem::bench {

struct Projection {
  const char* name;
  int64_t in;
  int64_t out;
  cuda::SmallEpilogue epilogue;
  bool normed;
};
inline constexpr Projection kProjections[] = {
    {"qkv", kHidden, kQkv, cuda::SmallEpilogue::kStore, true},
    {"o", kHidden, kHidden, cuda::SmallEpilogue::kAdd, false},
    {"gate|up", kHidden, 2 * kInner, cuda::SmallEpilogue::kSiluMul, true},
    {"down", kInner, kHidden, cuda::SmallEpilogue::kAdd, false},
    {"head", kHidden, kVocab, cuda::SmallEpilogue::kStoreFloat, true},
};
[[nodiscard]] std::string shape_of(const Projection& p, uint32_t rows);

// cuBLASLt and the workspace of its products.
struct LinearLibrary {
  cuda::CublasLt lt;
  cuda::DeviceBuffer workspace;
};
[[nodiscard]] Result<LinearLibrary> open_library(const KernelBenchOptions& options);
[[nodiscard]] Result<engine::WideLinear> open_wide(const BenchCard& card,
                                                   const LinearLibrary& library,
                                                   bool fast_accumulation = false);

// A matrix in FP8: bf16 rows quantized as activations are.
struct Fp8Matrix {
  cuda::DeviceBuffer bits;
  cuda::DeviceBuffer scales;
};
[[nodiscard]] Result<Fp8Matrix> quantized(BenchCard& card, const Bf16* x, int64_t rows,
                                          int64_t cols);
// Products in FP8 and what makes their rows, against bf16. `pool`: kHidden * kVocab random bf16.
[[nodiscard]] Status bench_linear_fp8(BenchCard& card, const LinearLibrary& library,
                                      const cuda::DeviceBuffer& pool, const RowSink& sink);

}  // namespace tandem::bench
