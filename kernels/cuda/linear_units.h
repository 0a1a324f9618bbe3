#pragma once

#include <cstdint>

#include "kernels/cuda/linear_small.h"

// What the planners of linear_small.h and linear_batch.h share.
namespace tandem::cuda {

[[nodiscard]] constexpr uint32_t ceil_div(int64_t a, int64_t b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

// Outputs that must stay in one block: a gate and its up are neighbours and become one result.
[[nodiscard]] constexpr int64_t output_unit(SmallEpilogue epilogue) {
  return epilogue == SmallEpilogue::kSiluMul ? 2 : 1;
}

}  // namespace tandem::cuda
