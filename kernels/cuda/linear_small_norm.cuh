#pragma once

#include <cstdint>

#include "kernels/cuda/rows.cuh"

// The RMS norm that begins linear_small.cu's kernels: by the first kNormThreads threads of a block,
// with the bits of rms_norm() in rows.cu.
namespace tandem::cuda {

// Norms the rows into shared memory, by all consumers. Rows of up to kHeldInputs inputs
// are read two at a time, so that one waits for memory once, and held until their sums are known.
inline constexpr int kHeld = 4;
inline constexpr int kHeldInputs = 4 * kHeld * kNormThreads;

struct NormRows {
  const float* x;
  const uint32_t* index;  // row i is x[index[i]]; null: row i
  const float* norm;
  float eps;
  int in;
  int rows;
  float* sums;  // shared, 8 a row
  char* to;     // shared, bf16 rows
  int pitch;    // bytes
};

// The first kNormThreads threads of the block meet.
__device__ __forceinline__ void norm_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kNormThreads) : "memory");
}

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

// The same order as square_share(); the zeros past the end change nothing.
__device__ __forceinline__ float held_square_share(const HeldRow& row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    sum = fmaf(row.v[i].x, row.v[i].x, sum);
    sum = fmaf(row.v[i].y, row.v[i].y, sum);
    sum = fmaf(row.v[i].z, row.v[i].z, sum);
    sum = fmaf(row.v[i].w, row.v[i].w, sum);
  }
  return sum;
}

__device__ __forceinline__ uint2 normed_four(const float4& v, const float4& w, float factor) {
  return {pack_pair(normed(v.x, factor, w.x), normed(v.y, factor, w.y)),
          pack_pair(normed(v.z, factor, w.z), normed(v.w, factor, w.w))};
}

__device__ __forceinline__ const float* residual_row(const NormRows& task, int r) {
  return task.x + (task.index != nullptr ? int64_t{task.index[r]} : int64_t{r}) * task.in;
}

__device__ __forceinline__ void norm_short_rows(const NormRows& task, const HeldRow& norm, int t) {
  for (int first = 0; first < task.rows; first += 2) {
    const bool two = first + 1 < task.rows;
    HeldRow rows[2];
    rows[0] = hold_row(residual_row(task, first), task.in, t);
    if (two) rows[1] = hold_row(residual_row(task, first + 1), task.in, t);
    float* sums = task.sums + first * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r == 1 && !two) break;
      const float share = warp_sum(held_square_share(rows[r]));
      if (t % 32 == 0) sums[r * 8 + t / 32] = share;
    }
    norm_sync();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r == 1 && !two) break;
      const float factor = norm_factor(sums + r * 8, task.in, task.eps);
      char* to = task.to + (first + r) * task.pitch;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = (t + i * kNormThreads) * 4;
        if (at < task.in)
          *reinterpret_cast<uint2*>(to + at * 2) = normed_four(rows[r].v[i], norm.v[i], factor);
      }
    }
  }
  norm_sync();
}

__device__ __forceinline__ void norm_long_rows(const NormRows& task, int t) {
  for (int r = 0; r < task.rows; ++r) {
    const float share = warp_sum(square_share(residual_row(task, r), task.in, t));
    if (t % 32 == 0) task.sums[r * 8 + t / 32] = share;
  }
  norm_sync();
  for (int r = 0; r < task.rows; ++r) {
    const float* x = residual_row(task, r);
    const float factor = norm_factor(task.sums + r * 8, task.in, task.eps);
    char* to = task.to + r * task.pitch;
#pragma unroll 4
    for (int i = t * 4; i < task.in; i += kNormThreads * 4)
      *reinterpret_cast<uint2*>(to + i * 2) =
          normed_four(*reinterpret_cast<const float4*>(x + i),
                      *reinterpret_cast<const float4*>(task.norm + i), factor);
  }
  norm_sync();
}

}  // namespace tandem::cuda
