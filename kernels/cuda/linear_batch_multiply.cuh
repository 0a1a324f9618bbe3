#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear_batch_layout.h"
#include "kernels/cuda/linear_small_multiply.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/wgmma.cuh"

// What one warpgroup of linear_batch.cu multiplies: 64 outputs by all rows of activations, bf16
// with float32 sums. Weights in bf16 go from shared memory into wgmma, those in float8 through
// registers, where they become bf16.
namespace tandem::cuda {

struct Ring {
  uint64_t* full;
  uint64_t* empty;
  uint32_t stages_at;  // in shared memory
  uint32_t x_at;       // in a stage
  uint32_t stage_bytes;
  int stages;
};

// The stages that a warpgroup takes of a tile: every `turn`-th of the block's.
class Turns {
 public:
  __device__ __forceinline__ Turns(const Ring& ring, int first, int end, int turn)
      : left_(end - first),
        turn_(turn),
        stage_(first % ring.stages),
        parity_(static_cast<uint32_t>(first / ring.stages % 2)) {}
  [[nodiscard]] __device__ __forceinline__ bool more() const { return left_ > 0; }
  [[nodiscard]] __device__ __forceinline__ int stage() const { return stage_; }
  // Waits for the stage; its address.
  [[nodiscard]] __device__ __forceinline__ uint32_t take(const Ring& ring) const {
    barrier_wait(&ring.full[stage_], parity_);
    return ring.stages_at + static_cast<uint32_t>(stage_) * ring.stage_bytes;
  }
  __device__ __forceinline__ void next(const Ring& ring) {
    left_ -= turn_;
    stage_ += turn_;
    if (stage_ >= ring.stages) {
      stage_ -= ring.stages;
      parity_ ^= 1;
    }
  }

 private:
  int left_;
  int turn_;
  int stage_;
  uint32_t parity_;
};

__device__ __forceinline__ uint64_t panel_descriptor(uint32_t address) {
  return wgmma_descriptor(address, 0, 8 * kBatchPanelBytes, kBatchPanelBytes);
}

template <int kColumns>
__device__ __forceinline__ void multiply_batch_bf16(float (&sums)[kColumns / 2], const Ring& ring,
                                                    Turns turns, uint32_t rows_at, int lane) {
  int before = -1;
  for (; turns.more(); turns.next(ring)) {
    const uint32_t at = turns.take(ring);
    const uint64_t a = panel_descriptor(at + rows_at);
    const uint64_t b = panel_descriptor(at + ring.x_at);
    wgmma_pin(sums);
    wgmma_fence();
#pragma unroll
    for (uint32_t s = 0; s < 4; ++s)
      WgmmaNarrow<kColumns>::ss(sums, wgmma_advance(a, s * 32), wgmma_advance(b, s * 32));
    wgmma_commit();
    wgmma_wait<1>();
    if (before >= 0 && lane == 0) barrier_arrive(&ring.empty[before]);
    before = turns.stage();
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (before >= 0 && lane == 0) barrier_arrive(&ring.empty[before]);
}

// Two instructions' weights. A lane gets four neighbouring float8 of a row where a bf16 operand
// wants two and two eight further on: the four lanes of a row exchange them.
__device__ __forceinline__ void load_fp8(uint32_t (&a)[2][4], uint32_t address, int lane) {
  uint32_t raw[4];
  load_matrices(raw, address);
  const int low = lane / 4 * 4 + lane % 4 / 2;
  const uint32_t order = lane % 2 == 0 ? 0x1404 : 0x3424;
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t r = raw[h * 2 + i];
      a[h][i] = bf16_of_fp8(__byte_perm(__shfl_sync(0xffffffffU, r, low), 0, order));
      a[h][2 + i] = bf16_of_fp8(__byte_perm(__shfl_sync(0xffffffffU, r, low + 2), 0, order));
    }
}

// Registers of one half of a stage are filled while wgmma reads those of the other.
template <int kColumns>
__device__ __forceinline__ void multiply_batch_fp8(float (&sums)[kColumns / 2], const Ring& ring,
                                                   Turns turns, uint32_t rows_at, int t) {
  const int lane = t % 32;
  const uint32_t row = rows_at + static_cast<uint32_t>(t / 32 * 16 + lane % 16) * kBatchPanelBytes;
  const auto swizzle = static_cast<uint32_t>(lane % 8);
  int before = -1;
  uint32_t a[2][4][4];
  for (; turns.more(); turns.next(ring)) {
    const uint32_t at = turns.take(ring);
    const uint64_t b = panel_descriptor(at + ring.x_at);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (uint32_t s = 0; s < 4; s += 2) {
        const uint32_t chunk = half * 4 + s + static_cast<uint32_t>(lane / 16);
        uint32_t pair[2][4];
        load_fp8(pair, at + row + ((chunk ^ swizzle) << 4), lane);
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h)
#pragma unroll
          for (int k = 0; k < 4; ++k) a[half][s + h][k] = pair[h][k];
      }
      wgmma_pin(sums);
      wgmma_fence();
#pragma unroll
      for (uint32_t s = 0; s < 4; ++s)
        WgmmaNarrow<kColumns>::rs(sums, a[half][s],
                                  wgmma_advance(b, half * kColumns * kBatchPanelBytes + s * 32));
      wgmma_commit();
      wgmma_wait<1>();
      if (half == 0) {
        if (before >= 0 && lane == 0) barrier_arrive(&ring.empty[before]);
        before = turns.stage();
      }
    }
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (before >= 0 && lane == 0) barrier_arrive(&ring.empty[before]);
}

}  // namespace tandem::cuda
