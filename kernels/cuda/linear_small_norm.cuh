#pragma once

#include <cstdint>

#include "kernels/cuda/rows.cuh"

// The RMS norm that begins linear_small.cu's kernels, by the first kNormThreads threads of a block.
// Rows are multiplied by the norm's weights only; the factor of a row, for which all of it must
// have been seen, multiplies the results. Nothing waits for a sum, and rounding to bf16 errs no
// more.
namespace tandem::cuda {

inline constexpr int kHeld = 4;
inline constexpr int kHeldInputs = 4 * kHeld * kNormThreads;

struct NormRows {
  const float* x;
  const uint32_t* index;  // row i is x[index[i]]; null: row i
  const float* norm;
  float eps;
  int in;
  int rows;
  float* sums;     // shared, 8 a row
  float* factors;  // shared; written after the last barrier, by threads 0 .. rows-1
  char* to;        // shared, bf16 rows
  int pitch;       // bytes
};

// The first kNormThreads threads of the block meet.
__device__ __forceinline__ void norm_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kNormThreads) : "memory");
}

// A thread's share of a row of up to kHeldInputs.
struct HeldRow {
  float4 v[kHeld];
};

__device__ __forceinline__ HeldRow hold_row(const float* x, int in, int t) {
  HeldRow row;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = (t + i * kNormThreads) * 4;
    row.v[i] = at < in ? *reinterpret_cast<const float4*>(x + at) : float4{};
  }
  return row;
}

__device__ __forceinline__ uint2 scaled_four(const float4& v, const float4& w) {
  return {pack_pair(normed(v.x, 1.0F, w.x), normed(v.y, 1.0F, w.y)),
          pack_pair(normed(v.z, 1.0F, w.z), normed(v.w, 1.0F, w.w))};
}

__device__ __forceinline__ float add_squares(float sum, const float4& v) {
  sum = fmaf(v.x, v.x, sum);
  sum = fmaf(v.y, v.y, sum);
  sum = fmaf(v.z, v.z, sum);
  return fmaf(v.w, v.w, sum);
}

__device__ __forceinline__ const float* residual_row(const NormRows& task, int r) {
  return task.x + (task.index != nullptr ? int64_t{task.index[r]} : int64_t{r}) * task.in;
}

// Writes a held row and its share of the sum, in the order of square_share(); the zeros past the
// end change nothing.
__device__ __forceinline__ void finish_row(const NormRows& task, const HeldRow& norm,
                                           const HeldRow& row, int r, int t) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = (t + i * kNormThreads) * 4;
    if (at < task.in)
      *reinterpret_cast<uint2*>(task.to + r * task.pitch + at * 2) =
          scaled_four(row.v[i], norm.v[i]);
    sum = add_squares(sum, row.v[i]);
  }
  sum = warp_sum(sum);
  if (t % 32 == 0) task.sums[r * 8 + t / 32] = sum;
}

__device__ __forceinline__ void scale_rows(const NormRows& task, const HeldRow& norm, int t) {
  if (task.in <= kHeldInputs) {
    // Two at a time, so that memory is waited for half as often.
    for (int r = 0; r < task.rows; r += 2) {
      const bool two = r + 1 < task.rows;
      const HeldRow first = hold_row(residual_row(task, r), task.in, t);
      HeldRow second;
      if (two) second = hold_row(residual_row(task, r + 1), task.in, t);
      finish_row(task, norm, first, r, t);
      if (two) finish_row(task, norm, second, r + 1, t);
    }
  } else {
    for (int r = 0; r < task.rows; ++r) {
      const float* x = residual_row(task, r);
      float sum = 0;
#pragma unroll 4
      for (int i = t * 4; i < task.in; i += kNormThreads * 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + i);
        const float4 w = *reinterpret_cast<const float4*>(task.norm + i);
        *reinterpret_cast<uint2*>(task.to + r * task.pitch + i * 2) = scaled_four(v, w);
        sum = add_squares(sum, v);
      }
      sum = warp_sum(sum);
      if (t % 32 == 0) task.sums[r * 8 + t / 32] = sum;
    }
  }
  norm_sync();
  if (t < task.rows) task.factors[t] = norm_factor(task.sums + t * 8, task.in, task.eps);
}

}  // namespace tandem::cuda
