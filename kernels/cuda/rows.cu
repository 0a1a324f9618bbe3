#include "kernels/cuda/rows.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_small_norm.cuh"
#include "kernels/cuda/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

struct alignas(16) Eight {
  __nv_bfloat162 v[4];
};

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(std::max<int64_t>(1, (items + kThreads - 1) / kThreads));
}

// One block a row part: blockIdx.x is the row, blockIdx.y its 2048 columns.
__global__ void __launch_bounds__(kThreads)
    embed_kernel(DeviceStep step, const __nv_bfloat16* table, int64_t hidden, float* x) {
  allow_next();
  wait_for_previous();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const bool real = step.row_sequence == nullptr || step.row_sequence[row] >= 0;
  const __nv_bfloat16* from = table + (real ? int64_t{step.tokens[row]} : 0) * hidden;
  float* to = x + row * hidden;
  const int64_t first = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * 8;
  if (hidden % 8 == 0) {
    if (first >= hidden) return;
    const Eight e = *reinterpret_cast<const Eight*>(from + first);
    const float2 a = __bfloat1622float2(e.v[0]);
    const float2 b = __bfloat1622float2(e.v[1]);
    const float2 c = __bfloat1622float2(e.v[2]);
    const float2 d = __bfloat1622float2(e.v[3]);
    float4* out = reinterpret_cast<float4*>(to + first);
    out[0] = real ? float4{a.x, a.y, b.x, b.y} : float4{};
    out[1] = real ? float4{c.x, c.y, d.x, d.y} : float4{};
    return;
  }
  for (int64_t i = first; i < min(first + 8, hidden); ++i)
    to[i] = real ? __bfloat162float(from[i]) : 0.0F;
}

// Rows of up to kHeldInputs, a multiple of four, wait in registers until their sum is known.
__global__ void __launch_bounds__(kNormThreads) rms_norm_held_kernel(RmsNorm task) {
  __shared__ float sums[kNormThreads / 32];
  allow_next();
  const auto t = static_cast<int>(threadIdx.x);
  const auto n = static_cast<int>(task.hidden);
  const HeldRow norm = hold_row(task.norm, n, t);
  wait_for_previous();
  const int64_t row = task.index != nullptr ? int64_t{task.index[blockIdx.x]} : int64_t{blockIdx.x};
  const HeldRow held = hold_row(task.x + row * n, n, t);
  float sum = 0;
#pragma unroll
  for (const float4& v : held.v) sum = add_squares(sum, v);
  sum = warp_sum(sum);
  if (t % 32 == 0) sums[t / 32] = sum;
  auto* out = reinterpret_cast<__nv_bfloat16*>(task.out) + int64_t{blockIdx.x} * n;
  const auto store = [&](float factor) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = (t + i * kNormThreads) * 4;
      const float4& v = held.v[i];
      const float4& w = norm.v[i];
      if (at < n)
        *reinterpret_cast<uint2*>(out + at) = {
            pack_pair(normed(v.x, factor, w.x), normed(v.y, factor, w.y)),
            pack_pair(normed(v.z, factor, w.z), normed(v.w, factor, w.w))};
    }
  };
  if (task.factors != nullptr) store(1.0F);
  __syncthreads();
  const float factor = norm_factor(sums, n, task.eps);
  if (task.factors == nullptr)
    store(factor);
  else if (t == 0)
    task.factors[blockIdx.x] = factor;
}

__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNorm task) {
  __shared__ float sums[kNormThreads / 32];
  allow_next();
  wait_for_previous();
  const auto t = static_cast<int>(threadIdx.x);
  const int64_t row = task.index != nullptr ? int64_t{task.index[blockIdx.x]} : int64_t{blockIdx.x};
  const int64_t n = task.hidden;
  const float* x = task.x + row * n;
  const float share = warp_sum(square_share(x, n, t));
  if (t % 32 == 0) sums[t / 32] = share;
  __syncthreads();
  float factor = norm_factor(sums, n, task.eps);
  if (task.factors != nullptr) {
    if (t == 0) task.factors[blockIdx.x] = factor;
    factor = 1.0F;
  }
  auto* out = reinterpret_cast<__nv_bfloat16*>(task.out) + int64_t{blockIdx.x} * n;
  if (n % 4 != 0) {
    for (int64_t i = t; i < n; i += kNormThreads) out[i] = normed(x[i], factor, task.norm[i]);
    return;
  }
#pragma unroll 4
  for (int64_t i = int64_t{t} * 4; i < n; i += int64_t{kNormThreads} * 4) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    const float4 w = *reinterpret_cast<const float4*>(task.norm + i);
    *reinterpret_cast<uint2*>(out + i) = {
        pack_pair(normed(v.x, factor, w.x), normed(v.y, factor, w.y)),
        pack_pair(normed(v.z, factor, w.z), normed(v.w, factor, w.w))};
  }
}

// Over the flat array, since rows are dense: a thread takes four results at a time, side by side
// with its neighbours', and kSiluTurns of them at once.
constexpr int kSiluTurns = 4;

__global__ void __launch_bounds__(kThreads)
    silu_mul_kernel(int64_t count, const __nv_bfloat16* gate_up, __nv_bfloat16* out) {
  allow_next();
  wait_for_previous();
  const int64_t fours = count / 4;
  const int64_t first = int64_t{blockIdx.x} * kThreads * kSiluTurns + threadIdx.x;
  uint4 pairs[kSiluTurns];
#pragma unroll
  for (int i = 0; i < kSiluTurns; ++i)
    if (first + i * kThreads < fours)
      pairs[i] = __ldcs(reinterpret_cast<const uint4*>(gate_up) + first + i * kThreads);
#pragma unroll
  for (int i = 0; i < kSiluTurns; ++i) {
    if (first + i * kThreads >= fours) break;
    const uint32_t in[4] = {pairs[i].x, pairs[i].y, pairs[i].z, pairs[i].w};
    __nv_bfloat16 result[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float gate = __uint_as_float(in[j] << 16);
      const float up = __uint_as_float(in[j] & 0xffff0000U);
      result[j] = __float2bfloat16_rn(silu(gate) * up);
    }
    reinterpret_cast<uint2*>(out)[first + i * kThreads] = {pack_pair(result[0], result[1]),
                                                           pack_pair(result[2], result[3])};
  }
  const int64_t rest = fours * 4 + threadIdx.x;
  if (blockIdx.x == 0 && rest < count)
    out[rest] = __float2bfloat16_rn(silu(__bfloat162float(gate_up[2 * rest])) *
                                    __bfloat162float(gate_up[2 * rest + 1]));
}

__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(int64_t count, int64_t columns, const __nv_bfloat16* bias, float* x) {
  allow_next();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) x[i] += __bfloat162float(bias[i % columns]);
}

const __nv_bfloat16* raw(const Bf16* p) { return reinterpret_cast<const __nv_bfloat16*>(p); }
__nv_bfloat16* raw(Bf16* p) { return reinterpret_cast<__nv_bfloat16*>(p); }

}  // namespace

cudaError_t embed(const DeviceStep& step, const Bf16* table, int64_t hidden, float* x,
                  cudaStream_t stream) {
  if (step.rows == 0 || hidden == 0) return cudaSuccess;
  const dim3 grid(step.rows, blocks_for((hidden + 7) / 8));
  return launch_chained(embed_kernel, grid, dim3(kThreads), 0, stream, step, raw(table), hidden, x);
}

cudaError_t rms_norm(const RmsNorm& task, cudaStream_t stream) {
  if (task.rows == 0 || task.hidden == 0) return cudaSuccess;
  const bool held = task.hidden % 4 == 0 && task.hidden <= kHeldInputs;
  return launch_chained(held ? rms_norm_held_kernel : rms_norm_kernel, dim3(task.rows),
                        dim3(kNormThreads), 0, stream, task);
}

cudaError_t silu_mul(uint32_t rows, int64_t intermediate, const Bf16* gate_up, Bf16* out,
                     cudaStream_t stream) {
  const int64_t count = int64_t{rows} * intermediate;
  if (count == 0) return cudaSuccess;
  return launch_chained(silu_mul_kernel,
                        dim3(blocks_for((count + 4 * kSiluTurns - 1) / (4 * kSiluTurns))),
                        dim3(kThreads), 0, stream, count, raw(gate_up), raw(out));
}

cudaError_t add_bias(uint32_t rows, int64_t columns, const Bf16* bias, float* x,
                     cudaStream_t stream) {
  const int64_t count = int64_t{rows} * columns;
  if (count == 0) return cudaSuccess;
  return launch_chained(add_bias_kernel, dim3(blocks_for(count)), dim3(kThreads), 0, stream, count,
                        columns, raw(bias), x);
}

}  // namespace tandem::cuda
