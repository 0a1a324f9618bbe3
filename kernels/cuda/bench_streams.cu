#include <cuda_bf16.h>

#include "kernels/cuda/bench_streams.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kAhead = 8;  // 16-byte loads in flight a thread; 2 blocks an SM saturate an H200

__global__ void __launch_bounds__(kThreads)
    read_all(const uint4* data, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t step = size_t{gridDim.x} * kThreads * kAhead;
  for (size_t base = size_t{blockIdx.x} * kThreads * kAhead + threadIdx.x; base < count;
       base += step) {
    uint4 v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const size_t i = base + static_cast<size_t>(a) * kThreads;
      v[a] = i < count ? __ldcs(data + i) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) sum ^= v[a].x ^ v[a].y ^ v[a].z ^ v[a].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

__global__ void __launch_bounds__(kThreads) copy_all(uint4* to, const uint4* from, size_t count) {
  const size_t step = size_t{gridDim.x} * kThreads * kAhead;
  for (size_t base = size_t{blockIdx.x} * kThreads * kAhead + threadIdx.x; base < count;
       base += step) {
    uint4 v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const size_t i = base + static_cast<size_t>(a) * kThreads;
      if (i < count) v[a] = __ldcs(from + i);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const size_t i = base + static_cast<size_t>(a) * kThreads;
      if (i < count) __stcs(to + i, v[a]);
    }
  }
}

cudaError_t blocks_of(unsigned& blocks) {
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  blocks = 2 * static_cast<unsigned>(multiprocessors);
  return error;
}

__device__ uint32_t mixed(uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}

__device__ float normal_of(uint64_t index, uint32_t seed) {
  const uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ull + (uint64_t{seed} << 32);
  const float u = (static_cast<float>(mixed(x) >> 8) + 0.5F) * 0x1p-24F;
  const float v = static_cast<float>(mixed(x ^ 0x5851f42d4c957f2dull) >> 8) * 0x1p-24F;
  return sqrtf(-2.0F * logf(u)) * cospif(2.0F * v);
}

template <typename T>
__global__ void fill(T* out, size_t count, float deviation, uint32_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = static_cast<T>(deviation * normal_of(i, seed));
}

}  // namespace

cudaError_t read_stream(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream) {
  unsigned blocks = 0;
  const cudaError_t error = blocks_of(blocks);
  if (error != cudaSuccess) return error;
  read_all<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4),
                                            sink);
  return cudaGetLastError();
}

cudaError_t copy_stream(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  unsigned blocks = 0;
  const cudaError_t error = blocks_of(blocks);
  if (error != cudaSuccess) return error;
  copy_all<<<blocks, kThreads, 0, stream>>>(static_cast<uint4*>(to),
                                            static_cast<const uint4*>(from), bytes / sizeof(uint4));
  return cudaGetLastError();
}

cudaError_t fill_normal(Bf16* out, size_t count, float deviation, uint32_t seed,
                        cudaStream_t stream) {
  static_assert(sizeof(Bf16) == sizeof(__nv_bfloat16));
  fill<<<2048, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(out), count, deviation, seed);
  return cudaGetLastError();
}

cudaError_t fill_normal(float* out, size_t count, float deviation, uint32_t seed,
                        cudaStream_t stream) {
  fill<<<2048, 256, 0, stream>>>(out, count, deviation, seed);
  return cudaGetLastError();
}

}  // namespace tandem::cuda
