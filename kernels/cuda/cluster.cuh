#pragma once

#include <cstdint>

#include "kernels/cuda/pipeline.cuh"

// Blocks of a cluster: each other's shared memory and barriers.
namespace tandem::cuda {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks: barriers that were initialized, and fenced by barrier_init_fence(),
// are there for all of them. Of other memory it promises nothing, and so waits for none.
__device__ __forceinline__ void cluster_sync_barriers() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

// Where block `rank` has what this block has at `address` (shared memory).
__device__ __forceinline__ uint32_t address_at(uint32_t address, uint32_t rank) {
  uint32_t there = 0;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Counts as 16 bytes of what the other block's barrier waits for: who has waited sees them. An
// arrival with release would wait until everything that the thread has written is seen everywhere.
__device__ __forceinline__ void store_at(uint32_t there, const float4& v, uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier_there)
      : "memory");
}

// Arrives at another block's barrier, once what the thread has read and written is done.
__device__ __forceinline__ void barrier_arrive_at(uint32_t there) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there)
               : "memory");
}

__device__ __forceinline__ void barrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tandem::cuda
