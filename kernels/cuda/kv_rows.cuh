#pragma once

#include <cstdint>

#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/kv_lanes.cuh"
#include "kernels/cuda/kv_page.cuh"

// Rows of the packed qkv activation, one head at a time, by one warp with the row as floats in
// shared memory.
namespace tandem::cuda {

__device__ inline void warp_load_row(const Bf16* from, uint32_t head_dim, float* to) {
  for (uint32_t c = threadIdx.x % kWarp; c < head_dim / 2; c += kWarp) {
    const uint32_t two = reinterpret_cast<const uint32_t*>(from)[c];
    to[2 * c] = __uint_as_float(two << 16);
    to[2 * c + 1] = __uint_as_float(two & 0xffff0000U);
  }
  __syncwarp();
}

__device__ inline void warp_store_row(const float* from, uint32_t head_dim, Bf16* to) {
  for (uint32_t c = threadIdx.x % kWarp; c < head_dim / 2; c += kWarp) {
    reinterpret_cast<uint32_t*>(to)[c] =
        uint32_t{bf16_bits(from[2 * c])} | uint32_t{bf16_bits(from[2 * c + 1])} << 16;
  }
}

// Sum of squares in the order of normalize_lane(), where a row can lie in lanes like that.
__device__ inline float warp_squares(const float* x, uint32_t head_dim, uint32_t half) {
  const uint32_t lane = threadIdx.x % kWarp;
  float squares = 0.0F;
  if (!fits_lanes(head_dim, half)) {
    for (uint32_t c = lane; c < head_dim; c += kWarp) squares = __fmaf_rn(x[c], x[c], squares);
    return warp_sum(squares);
  }
  const Place at = rotary_place(lane / 2, head_dim, half);
  if (at.live) squares = run_squares(x + (lane % 2 == 0 ? at.a : at.b));
  squares = __fadd_rn(squares, __shfl_xor_sync(kAllLanes, squares, 1));
  for (uint32_t i = lanes_of(head_dim); i > 1; i /= 2)
    squares = __fadd_rn(squares, __shfl_xor_sync(kAllLanes, squares, i));
  return __shfl_sync(kAllLanes, squares, 0);
}

// Norm and rotation of one head's row. Several kernels do this, and their bits must be the same:
// every fused multiply-add is spelled.
__device__ inline void warp_normalize(float* x, uint32_t head_dim, const float* norm, float eps,
                                      const DeviceRope& rope) {
  const float squares = warp_squares(x, head_dim, rope.rotary_dim / 2);
  const float inverse = norm_factor(squares, head_dim, eps);
  for (uint32_t c = threadIdx.x % kWarp; c < head_dim; c += kWarp)
    x[c] = __fmul_rn(__fmul_rn(x[c], inverse), norm[c]);
  __syncwarp();
}
__device__ __forceinline__ void rotate_pair(float& x, float& y, float2 cos_sin) {
  const float a = x;
  const float b = y;
  x = __fmaf_rn(a, cos_sin.x, -__fmul_rn(b, cos_sin.y));
  y = __fmaf_rn(b, cos_sin.x, __fmul_rn(a, cos_sin.y));
}
// `norm` may be null.
__device__ inline void warp_rotate(float* x, uint32_t head_dim, const float* norm, float eps,
                                   const DeviceRope& rope, uint32_t position) {
  if (norm != nullptr) warp_normalize(x, head_dim, norm, eps, rope);
  const uint32_t half = rope.rotary_dim / 2;
  for (uint32_t i = threadIdx.x % kWarp; i < half; i += kWarp)
    rotate_pair(x[i], x[i + half], rope.cos_sin[uint64_t{position} * half + i]);
  __syncwarp();
}

struct HeadRows {
  QkvColumns columns;
  Bf16* qkv;
  DeviceRope rope;
  const float* q_norm;
  const float* k_norm;
  float norm_eps;

  __device__ Bf16* row(uint32_t r) const { return qkv + uint64_t{r} * columns.row; }

  __device__ void warp_rotate(float* x, const float* norm, uint32_t position) const {
    cuda::warp_rotate(x, columns.head_dim, norm, norm_eps, rope, position);
  }
};

}  // namespace tandem::cuda
