#include "kernels/cuda/fp8_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "common/kv/codec.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

// A block a row. The row is read once and waits in shared memory until its largest element is
// known. What bounds these kernels is the memory's latency, so each thread asks for kTurns vectors
// at once, and blocks are as small as lets all of a multiprocessor's threads work.
namespace tandem::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kTurns = 4;
constexpr int kWarp = 32;

extern __shared__ uint4 held[];  // the row: 8 bf16 a vector, or 4 floats

__device__ __forceinline__ float2 pair_of(uint32_t bits) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000U)};
}

__device__ __forceinline__ float larger(float most, float2 p) {
  return fmaxf(most, fmaxf(fabsf(p.x), fabsf(p.y)));
}

// Four bf16 of two registers, scaled.
__device__ __forceinline__ uint32_t four_fp8(float2 a, float2 b, float factor) {
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2({a.x * factor, a.y * factor}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2({b.x * factor, b.y * factor}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// The largest of the block's threads; also orders what they wrote to `held` before what they read.
__device__ __forceinline__ float largest_of_block(float most) {
  __shared__ float warps[kMostThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, offset));
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) most = fmaxf(most, warps[w]);
  return most;
}

// What a row's elements are multiplied by; its scale is stored by the first thread.
__device__ __forceinline__ float factor_of(float largest, float* scale) {
  if (threadIdx.x == 0) *scale = __fdiv_rn(largest, kv::kMaxE4m3);
  return largest > 0 ? __fdiv_rn(kv::kMaxE4m3, largest) : 0.0F;
}

// Calls body(i, from[i]) for every vector i of the block's row, each thread in rising order with
// kTurns in flight. kOnce: nobody reads the row again.
template <bool kOnce, typename Body>
__device__ __forceinline__ void each_vector(const uint4* from, int vectors, const Body& body) {
  const auto step = static_cast<int>(blockDim.x);
  const auto load = [](const uint4* p) { return kOnce ? __ldcs(p) : *p; };
  int i = static_cast<int>(threadIdx.x);
  for (; i + (kTurns - 1) * step < vectors; i += kTurns * step) {
    uint4 v[kTurns];
#pragma unroll
    for (int k = 0; k < kTurns; ++k) v[k] = load(from + i + k * step);
#pragma unroll
    for (int k = 0; k < kTurns; ++k) body(i + k * step, v[k]);
  }
  uint4 v[kTurns - 1];
#pragma unroll
  for (int k = 0; k < kTurns - 1; ++k)
    if (i + k * step < vectors) v[k] = load(from + i + k * step);
#pragma unroll
  for (int k = 0; k < kTurns - 1; ++k)
    if (i + k * step < vectors) body(i + k * step, v[k]);
}

// `held` as `vectors` of 8 bf16 to float8.
__device__ __forceinline__ void store_held(float most, int vectors, uint8_t* out, float* scale) {
  const float factor = factor_of(largest_of_block(most), scale);
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
    const uint4 v = held[i];
    reinterpret_cast<uint2*>(out)[i] = {four_fp8(pair_of(v.x), pair_of(v.y), factor),
                                        four_fp8(pair_of(v.z), pair_of(v.w), factor)};
  }
}

__global__ void __launch_bounds__(kMostThreads)
    quantize_rows_kernel(const uint4* x, int vectors, Fp8Out to) {
  allow_next();
  wait_for_previous();
  const auto row = static_cast<int64_t>(blockIdx.x);
  float most = 0;
  each_vector<true>(x + row * vectors, vectors, [&](int i, const uint4& v) {
    held[i] = v;
    for (const uint32_t bits : {v.x, v.y, v.z, v.w}) most = larger(most, pair_of(bits));
  });
  store_held(most, vectors, to.out + row * vectors * 8, to.scales + row);
}

// `vectors` of 4 gates and ups.
__global__ void __launch_bounds__(kMostThreads)
    quantize_silu_kernel(const uint4* gate_up, int vectors, Fp8Out to) {
  allow_next();
  wait_for_previous();
  const auto row = static_cast<int64_t>(blockIdx.x);
  float most = 0;
  each_vector<true>(gate_up + row * vectors, vectors, [&](int i, const uint4& v) {
    const uint32_t in[4] = {v.x, v.y, v.z, v.w};
    __nv_bfloat16 y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 p = pair_of(in[j]);
      y[j] = __float2bfloat16_rn(silu(p.x) * p.y);
    }
    const uint2 packed{pack_pair(y[0], y[1]), pack_pair(y[2], y[3])};
    most = larger(larger(most, pair_of(packed.x)), pair_of(packed.y));
    reinterpret_cast<uint2*>(held)[i] = packed;
  });
  store_held(most, vectors / 2, to.out + row * vectors * 4, to.scales + row);
}

// Each thread meets only its own elements of `held`, in the order of square_share().
__global__ void __launch_bounds__(kNormThreads) quantize_normed_kernel(Fp8Norm task) {
  __shared__ float sums[kNormThreads / kWarp];
  allow_next();
  wait_for_previous();
  const auto t = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int64_t from = task.index != nullptr ? int64_t{task.index[row]} : row;
  const auto vectors = static_cast<int>(task.hidden / 4);
  auto* const y = reinterpret_cast<float4*>(held);
  const auto* const x = reinterpret_cast<const uint4*>(task.x + from * task.hidden);
  float sum = 0;
  each_vector<false>(x, vectors, [&](int i, const uint4& bits) {
    const float4 v{__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                   __uint_as_float(bits.w)};
    y[i] = v;
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    sum = fmaf(v.w, v.w, sum);
  });
  sum = warp_sum(sum);
  if (t % kWarp == 0) sums[t / kWarp] = sum;
  __syncthreads();
  const float factor = norm_factor(sums, task.hidden, task.eps);
  float most = 0;
#pragma unroll 4
  for (int i = t; i < vectors; i += kNormThreads) {
    const float4 v = y[i];
    const float4 w = reinterpret_cast<const float4*>(task.norm)[i];
    const float2 a = pair_of(pack_pair(normed(v.x, factor, w.x), normed(v.y, factor, w.y)));
    const float2 b = pair_of(pack_pair(normed(v.z, factor, w.z), normed(v.w, factor, w.w)));
    most = larger(larger(most, a), b);
    y[i] = {a.x, a.y, b.x, b.y};
  }
  const float scale = factor_of(largest_of_block(most), task.to.scales + row);
  auto* const out = reinterpret_cast<uint32_t*>(task.to.out + row * task.hidden);
  for (int i = t; i < vectors; i += kNormThreads) {
    const float4 v = y[i];
    out[i] = four_fp8({v.x, v.y}, {v.z, v.w}, scale);
  }
}

unsigned threads_for(int vectors) {
  constexpr int kLeast = 128;
  const int wanted = (vectors + kTurns - 1) / kTurns;
  const int rounded = (wanted + kWarp - 1) / kWarp * kWarp;
  return static_cast<unsigned>(rounded < kLeast         ? kLeast
                               : rounded > kMostThreads ? kMostThreads
                                                        : rounded);
}

}  // namespace

cudaError_t prepare_fp8_rows() {
  constexpr int kHalves = static_cast<int>(kFp8RowCols * 2);
  constexpr int kFloats = static_cast<int>(kFp8RowCols * 4);
  const auto allow = [](auto* kernel, int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  if (const cudaError_t e = allow(quantize_rows_kernel, kHalves); e != cudaSuccess) return e;
  if (const cudaError_t e = allow(quantize_silu_kernel, kHalves); e != cudaSuccess) return e;
  return allow(quantize_normed_kernel, kFloats);
}

cudaError_t quantize_rows(const Fp8Rows& task, cudaStream_t stream) {
  if (task.rows == 0 || task.cols == 0) return cudaSuccess;
  if (task.cols % 8 != 0 || task.cols > kFp8RowCols) return cudaErrorInvalidValue;
  const auto vectors = static_cast<int>(task.cols / 8);
  return launch_chained(quantize_rows_kernel, dim3(task.rows), dim3(threads_for(vectors)),
                        static_cast<size_t>(task.cols) * sizeof(Bf16), stream,
                        reinterpret_cast<const uint4*>(task.x), vectors, task.to);
}

cudaError_t quantize_normed(const Fp8Norm& task, cudaStream_t stream) {
  if (task.rows == 0 || task.hidden == 0) return cudaSuccess;
  if (task.hidden % 4 != 0 || task.hidden > kFp8RowCols) return cudaErrorInvalidValue;
  return launch_chained(quantize_normed_kernel, dim3(task.rows), dim3(kNormThreads),
                        static_cast<size_t>(task.hidden) * sizeof(float), stream, task);
}

cudaError_t quantize_silu(const Fp8Silu& task, cudaStream_t stream) {
  if (task.rows == 0 || task.intermediate == 0) return cudaSuccess;
  if (task.intermediate % 8 != 0 || task.intermediate > kFp8RowCols) return cudaErrorInvalidValue;
  const auto vectors = static_cast<int>(task.intermediate / 4);
  return launch_chained(quantize_silu_kernel, dim3(task.rows), dim3(threads_for(vectors)),
                        static_cast<size_t>(task.intermediate) * sizeof(Bf16), stream,
                        reinterpret_cast<const uint4*>(task.gate_up), vectors, task.to);
}

}  // namespace tandem::cuda
