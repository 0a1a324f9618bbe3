#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear_small_layout.h"
#include "kernels/cuda/pipeline.cuh"

// What one warp of linear_small.cu multiplies: the weights of a stage, which may be float8, by the
// rows of activations, which are bf16. Float32 sums.
namespace tandem::cuda {

enum class WeightType : uint8_t { kBf16, kFp8 };
[[nodiscard]] __host__ __device__ constexpr int element_bytes(WeightType type) {
  return type == WeightType::kFp8 ? 1 : 2;
}

// Where a lane's operands begin in a stage: rows that do not exist stand for the last that does,
// since what lies behind it may be no memory at all. Their results are dropped.
template <int kColumns>
struct LaneOffsets {
  uint32_t weights[2];
  uint32_t x[kColumns / 8];
};

template <int kColumns, WeightType kWeight>
__device__ __forceinline__ LaneOffsets<kColumns> lane_offsets(int lane, int x_rows, int x_pitch,
                                                              int weight_rows, int pitch) {
  LaneOffsets<kColumns> lanes;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    // Bf16: as ldmatrix wants its addresses. Float8: the lane's own four inputs.
    const int row = (kWeight == WeightType::kFp8 ? lane / 4 : lane % 8) + n * 8;
    const int at = kWeight == WeightType::kFp8 ? lane % 4 * 8 : lane / 8 * 16;
    lanes.x[n] = static_cast<uint32_t>(min(row, x_rows - 1) * x_pitch + at);
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
    lanes.weights[m] =
        static_cast<uint32_t>(min(lane % 16 + m * 16, weight_rows - 1) * pitch + lane / 16 * 16);
  return lanes;
}

template <int kColumns>
__device__ __forceinline__ void multiply_bf16(float (&sums)[2][kColumns / 8][4], uint32_t weights,
                                              uint32_t x, const LaneOffsets<kColumns>& lanes,
                                              bool both, int first, int valid) {
  for (int k = first; k < valid; k += 32 * static_cast<int>(kSmallWarps)) {
    uint32_t b[kColumns / 8][4];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      load_matrices(b[n], x + lanes.x[n] + static_cast<uint32_t>(k * 2));
    uint32_t a[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
      if (m == 0 || both)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          load_matrices(a[m][h],
                        weights + lanes.weights[m] + static_cast<uint32_t>((k + h * 16) * 2));
    if (k + 32 > valid) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k + j * 8 >= valid) {
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n) b[n][j] = 0;
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            a[m][j / 2][j % 2 * 2] = 0;
            a[m][j / 2][j % 2 * 2 + 1] = 0;
          }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = 0; m < 2; ++m)
        if (m == 0 || both)
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n)
            mma_bf16(sums[m][n], a[m][h], b[n][h * 2], b[n][h * 2 + 1]);
  }
}

__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

// Two float8, in the upper bytes of the halves, as bf16. With its bits where those of a bf16 belong
// a float8 is 2^-120 of its value, subnormal ones included: the product is exact.
__device__ __forceinline__ uint32_t bf16_of_fp8(uint32_t halves) {
  constexpr uint32_t kTwoTo120 = 0x7b807b80U;
  const uint32_t small = (halves & 0x80008000U) | (halves >> 4 & 0x07f007f0U);
  uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(small), "r"(kTwoTo120));
  return result;
}

// A lane holds four float8 of a row where a bf16 operand has two and two eight further on. The
// order of inputs within a product does not matter as long as both operands agree: those of the
// activations are taken four by four as well.
template <int kColumns>
__device__ __forceinline__ void multiply_fp8(float (&sums)[2][kColumns / 8][4], uint32_t weights,
                                             uint32_t x, const LaneOffsets<kColumns>& lanes,
                                             bool both, int first, int valid) {
  for (int k = first; k < valid; k += 32 * static_cast<int>(kSmallWarps)) {
    // Rows are multiples of 16 inputs, so that the second half may be missing.
    const bool halved = k + 16 >= valid;
    uint2 b[kColumns / 8][2];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        b[n][h] = load_shared_pair(x + lanes.x[n] + static_cast<uint32_t>((k + h * 16) * 2));
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (m == 1 && !both) break;
      uint32_t raw[4];
      load_matrices(raw, weights + lanes.weights[m] + static_cast<uint32_t>(k));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (h == 1 && halved) break;
        // Rows lane / 4 and 8 further on.
        const uint32_t a[4] = {bf16_of_fp8(__byte_perm(raw[h * 2], 0, 0x1404)),
                               bf16_of_fp8(__byte_perm(raw[h * 2 + 1], 0, 0x1404)),
                               bf16_of_fp8(__byte_perm(raw[h * 2], 0, 0x3424)),
                               bf16_of_fp8(__byte_perm(raw[h * 2 + 1], 0, 0x3424))};
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) mma_bf16(sums[m][n], a, b[n][h].x, b[n][h].y);
      }
    }
  }
}

// One warp's products of one chunk. `valid` inputs; past them shared memory holds anything.
template <int kColumns, WeightType kWeight>
__device__ __forceinline__ void multiply(float (&sums)[2][kColumns / 8][4], uint32_t weights,
                                         uint32_t x, const LaneOffsets<kColumns>& lanes, bool both,
                                         int first, int valid) {
  if constexpr (kWeight == WeightType::kFp8)
    multiply_fp8<kColumns>(sums, weights, x, lanes, both, first, valid);
  else
    multiply_bf16<kColumns>(sums, weights, x, lanes, both, first, valid);
}

}  // namespace tandem::cuda
