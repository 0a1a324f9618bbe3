#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/attention_decode_merger.cuh"
#include "kernels/cuda/attention_decode_walker.cuh"
#include "kernels/cuda/launch.cuh"

// Split-KV decode attention on tensor cores. Blocks stay and walk over their units. In a block,
// kWarps walkers go over the pages (page i of a unit belongs to walker i mod kWarps), each with a
// ring of stages of its own that one bulk copy a page fills. They never wait for each other: at the
// end of a unit each leaves its state in a buffer and goes on, and two merger warps, who take
// turns, make the unit's result of it, count arrivals of splits, merge those, and fetch the queries
// of units to come.
namespace tandem::cuda::paged {

template <kv::KvFormat F, uint32_t kDim, uint32_t kTiles>
__global__ void __launch_bounds__((Config<F, kDim, kTiles>::kThreads), 1)
    attention_decode_paged_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::byte shared_memory[];
  using C = Config<F, kDim, kTiles>;
  const Shared<C> shared(args, shared_memory);
  shared.start();
  if (threadIdx.x / kWarp < C::kWarps) {
    Walker<F, kDim, kTiles>(shared).run();
  } else {
    Merger<F, kDim, kTiles>(shared).run();
  }
  __syncthreads();
  Merger<F, kDim, kTiles>(shared).merge_last();
}

constexpr size_t kSharedBytes = 227 * 1024;  // most that one block can have

template <kv::KvFormat F, uint32_t kDim, uint32_t kTiles>
cudaError_t launch(Args args, uint32_t blocks, cudaStream_t stream) {
  using C = Config<F, kDim, kTiles>;
  const uint32_t stage = C::kWarps * args.layer.shape.head_bytes;
  args.stages = std::min<uint32_t>((kSharedBytes - C::kRingAt) / stage, C::kMostStages);
  const size_t bytes = C::kRingAt + size_t{args.stages} * stage;
  const auto kernel = attention_decode_paged_kernel<F, kDim, kTiles>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, blocks, C::kThreads, bytes, stream, args);
}

template <kv::KvFormat F, uint32_t kDim>
cudaError_t launch_tiles(const Args& args, uint32_t columns, uint32_t blocks, cudaStream_t stream) {
  if (columns == 8) return launch<F, kDim, 1>(args, blocks, stream);
  if (columns == 16) return launch<F, kDim, 2>(args, blocks, stream);
  if constexpr (kDim <= 128) {
    if (columns == 32) return launch<F, kDim, 4>(args, blocks, stream);
  }
  return cudaErrorInvalidValue;
}

// The variant of F for a run-time head_dim, one of kDims.
template <kv::KvFormat F, uint32_t... kDims>
cudaError_t launch_head_dim(const Args& args, uint32_t head_dim, uint32_t columns, uint32_t blocks,
                            cudaStream_t stream) {
  cudaError_t result = cudaErrorInvalidValue;
  const auto launched = [&]<uint32_t kDim>() {
    if (head_dim != kDim) return false;
    result = launch_tiles<F, kDim>(args, columns, blocks, stream);
    return true;
  };
  (void)(launched.template operator()<kDims>() || ...);
  return result;
}

}  // namespace tandem::cuda::paged
