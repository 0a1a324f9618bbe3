#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/pipeline.cuh"

// Bulk tensor copies (TMA). A tensor map describes the tensor in global memory and the box that one
// copy moves; what lies outside the tensor arrives as zeros. Maps are kernel parameters
// (`const __grid_constant__ CUtensorMap`), made on the host by make_tensor_map (tensor_map.h).
namespace tandem::cuda {

// Has the copy engine look at the map before the first copy.
__device__ inline void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// One thread: copies the box at (x, y, z), x fastest, to shared memory; its bytes count at `full`.
__device__ inline void tma_load_3d(void* to, const CUtensorMap* map, uint64_t* full, int32_t x,
                                   int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The same with a policy for the L2 cache.
__device__ inline void tma_load_3d(void* to, const CUtensorMap* map, uint64_t* full, int32_t x,
                                   int32_t y, int32_t z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

}  // namespace tandem::cuda
