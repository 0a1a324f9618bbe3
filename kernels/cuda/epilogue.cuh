#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear_small.h"

namespace tandem::cuda {

// Hands one output of a product, bias included, to element `at` of its result.
template <SmallEpilogue kEpilogue>
__device__ __forceinline__ void store_output(void* result, int64_t at, float y) {
  static_assert(kEpilogue != SmallEpilogue::kSiluMul, "takes two outputs");
  if constexpr (kEpilogue == SmallEpilogue::kStore)
    static_cast<__nv_bfloat16*>(result)[at] = __float2bfloat16_rn(y);
  else if constexpr (kEpilogue == SmallEpilogue::kAdd)
    static_cast<float*>(result)[at] += y;
  else
    static_cast<float*>(result)[at] = y;
}

}  // namespace tandem::cuda
