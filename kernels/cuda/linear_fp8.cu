#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "common/kv/codec.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kEach = 8;  // elements of a thread's load

__device__ __forceinline__ float2 pair_of(uint32_t bits) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits));
}

__device__ __forceinline__ float largest_of(const uint4& v) {
  float most = 0;
#pragma unroll
  for (const uint32_t bits : {v.x, v.y, v.z, v.w}) {
    const float2 p = pair_of(bits);
    most = fmaxf(most, fmaxf(fabsf(p.x), fabsf(p.y)));
  }
  return most;
}

__device__ __forceinline__ uint32_t two_of(uint32_t bits, float factor) {
  const float2 p = pair_of(bits);
  return __nv_cvt_float2_to_fp8x2({p.x * factor, p.y * factor}, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float value_of(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

// A block a row. The second pass finds the row in the cache.
__global__ void __launch_bounds__(kThreads)
    quantize_rows_kernel(const uint4* x, int vectors, uint2* out, float* scales) {
  allow_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const uint4* from = x + row * vectors;
  float most = 0;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads)
    most = fmaxf(most, largest_of(from[i]));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, offset));
  __shared__ float warps[kWarps];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, warps[w]);
  const float factor = most > 0 ? __fdiv_rn(kv::kMaxE4m3, most) : 0.0F;
  if (threadIdx.x == 0) scales[row] = __fdiv_rn(most, kv::kMaxE4m3);
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    const uint4 v = from[i];
    out[row * vectors + i] = {two_of(v.x, factor) | two_of(v.y, factor) << 16,
                              two_of(v.z, factor) | two_of(v.w, factor) << 16};
  }
}

struct Task {
  const uint8_t* weight;
  const float* weight_scales;
  const __nv_bfloat16* bias;
  const uint8_t* x;
  const float* x_scales;
  void* result;
  int in;
  int out;
};

template <SmallEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads) linear_fp8_plain_kernel(Task task) {
  allow_next();
  wait_for_previous();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto output = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const auto row = static_cast<int64_t>(blockIdx.y);
  if (output >= task.out) return;
  float sum = 0;
  for (int i = lane; i < task.in; i += 32)
    sum = fmaf(value_of(task.weight[int64_t{output} * task.in + i]),
               value_of(task.x[row * task.in + i]), sum);
  float y = warp_sum(sum) * task.weight_scales[output] * task.x_scales[row];
  if (task.bias != nullptr) y += __bfloat162float(task.bias[output]);
  if (lane != 0) return;
  const int64_t at = row * task.out + output;
  if constexpr (kEpilogue == SmallEpilogue::kStore)
    static_cast<__nv_bfloat16*>(task.result)[at] = __float2bfloat16_rn(y);
  else if constexpr (kEpilogue == SmallEpilogue::kAdd)
    static_cast<float*>(task.result)[at] += y;
  else
    static_cast<float*>(task.result)[at] = y;
}

using Kernel = void (*)(Task);

Kernel pick(SmallEpilogue epilogue) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return linear_fp8_plain_kernel<SmallEpilogue::kStore>;
    case SmallEpilogue::kAdd:
      return linear_fp8_plain_kernel<SmallEpilogue::kAdd>;
    case SmallEpilogue::kStoreFloat:
      return linear_fp8_plain_kernel<SmallEpilogue::kStoreFloat>;
    case SmallEpilogue::kSiluMul:
      break;
  }
  return nullptr;
}

}  // namespace

cudaError_t quantize_rows(const Fp8Rows& task, cudaStream_t stream) {
  if (task.rows == 0 || task.cols == 0) return cudaSuccess;
  if (task.cols % kEach != 0) return cudaErrorInvalidValue;
  return launch_chained(quantize_rows_kernel, dim3(task.rows), dim3(kThreads), 0, stream,
                        reinterpret_cast<const uint4*>(task.x), static_cast<int>(task.cols / kEach),
                        reinterpret_cast<uint2*>(task.out), task.scales);
}

cudaError_t linear_fp8_plain(const Fp8Linear& task, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  const Kernel kernel = pick(task.epilogue);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const Task raw{task.weight,
                 task.weight_scales,
                 reinterpret_cast<const __nv_bfloat16*>(task.bias),
                 task.x,
                 task.x_scales,
                 task.result,
                 static_cast<int>(task.in),
                 static_cast<int>(task.out)};
  return launch_chained(kernel,
                        dim3(static_cast<unsigned>((task.out + kWarps - 1) / kWarps), task.rows),
                        dim3(kThreads), 0, stream, raw);
}

}  // namespace tandem::cuda
