#pragma once

#include <cuda_bf16.h>

#include <cstdint>

// The RMS norm that rows.cu and linear_small.cu share, so that both give the same bits: 256 threads
// take a row's elements in turns of four, then add up in a fixed tree.
namespace tandem::cuda {

inline constexpr int kNormThreads = 256;

// Four floats at x + i; elements past n are zero. n % 4 == 0 takes the aligned path.
__device__ __forceinline__ float4 load_four(const float* x, int64_t i, int64_t n) {
  if (n % 4 == 0) return *reinterpret_cast<const float4*>(x + i);
  return {x[i], i + 1 < n ? x[i + 1] : 0.0F, i + 2 < n ? x[i + 2] : 0.0F,
          i + 3 < n ? x[i + 3] : 0.0F};
}

// Thread `t` of kNormThreads: its share of a row's sum of squares.
__device__ __forceinline__ float square_share(const float* x, int64_t n, int t) {
  float sum = 0;
#pragma unroll 4
  for (int64_t i = int64_t{t} * 4; i < n; i += int64_t{kNormThreads} * 4) {
    const float4 v = load_four(x, i, n);
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    sum = fmaf(v.w, v.w, sum);
  }
  return sum;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffU, v, offset);
  return v;
}

// From the sums of the 8 warps.
__device__ __forceinline__ float norm_factor(const float* warp_sums, int64_t n, float eps) {
  float total = 0;
#pragma unroll
  for (int w = 0; w < kNormThreads / 32; ++w) total += warp_sums[w];
  return rsqrtf(total / static_cast<float>(n) + eps);
}

__device__ __forceinline__ __nv_bfloat16 normed(float x, float factor, float weight) {
  return __float2bfloat16_rn(x * factor * weight);
}

// Two bf16 in one register, the first in the low half.
__device__ __forceinline__ uint32_t pack_pair(__nv_bfloat16 low, __nv_bfloat16 high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(low)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(high)) << 16;
}

// Within 2 units in the last place of float32, far below the rounding to bf16 that follows.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0F + __expf(-x)); }

}  // namespace tandem::cuda
