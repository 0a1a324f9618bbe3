#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/linear_small.h"

// FP8 projections without cuBLASLt. Elements are float8 e4m3fn, each row with a scale: value =
// element * scale; fp8_rows.h makes them of activations. See step.h for conventions.
namespace tandem::cuda {

// y[rows, out] = (x * x_scales) @ (weight * weight_scales)^T + bias, sums in float32. Any size, a
// warp an output: for shapes that cuBLASLt has nothing for, and to compare with.
struct Fp8Linear {
  const uint8_t* weight = nullptr;  // [out, in]
  const float* weight_scales = nullptr;
  const Bf16* bias = nullptr;
  const uint8_t* x = nullptr;  // [rows, in]
  const float* x_scales = nullptr;
  int64_t in = 0;
  int64_t out = 0;
  uint32_t rows = 0;
  SmallEpilogue epilogue = SmallEpilogue::kStore;  // not kSiluMul
  void* result = nullptr;
};
cudaError_t linear_fp8_plain(const Fp8Linear& task, cudaStream_t stream);

}  // namespace tandem::cuda
