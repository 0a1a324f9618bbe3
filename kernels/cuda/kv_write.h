#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/step.h"

// What happens to queries, keys and values between the QKV projection and attention (the device
// side of Ops::write_kv): per-head norms, RoPE, and the step's keys and values into the pool.
namespace tandem::cuda {

// Device memory that layouts with needs_tail() want beside the pool, one for all layers: rows of
// open pages that a step of many rows fills and overwrites, kept until attention has read them.
[[nodiscard]] inline size_t kv_kept_bytes(const kv::KvLayout& layout, uint32_t sequences) {
  return layout.needs_tail() ? sequences * layout.tail_layout().page_bytes() : 0;
}

struct KvWrite {
  uint32_t layer = 0;
  uint32_t heads = 0;             // query heads; the others are those of the layout
  uint32_t first_sequence = 0;    // slots before it, and their rows, are left alone
  DeviceRope rope;                // rotary_dim 0: none
  const float* q_norm = nullptr;  // [head_dim], RMS norm of each head before RoPE; null: none
  const float* k_norm = nullptr;
  float norm_eps = 0;
  // [rows][(heads + 2 * kv_heads) * head_dim]; q and k are replaced by what RoPE makes of them,
  // computed in float32 and rounded once. What the pool gets is encoded before that rounding,
  // except in layouts with needs_tail() (see kv::seal_tail).
  Bf16* qkv = nullptr;
  void* kept = nullptr;  // kv_kept_bytes(); null where that is 0
};

// Enqueues; neither allocates nor waits. Fails with cudaErrorInvalidValue for a head_dim that is
// odd or above 256. Layouts with needs_tail(): rows of the open page go to the tail page, pages
// that fill are encoded whole.
cudaError_t kv_write(const DeviceStep& step, const DeviceKv& kv, const KvWrite& task,
                     cudaStream_t stream);
// The same, slower, for every head_dim; kv_write turns to it for those that are no multiple of 16
// or whose rotating half is no multiple of 8.
cudaError_t kv_write_plain(const DeviceStep& step, const DeviceKv& kv, const KvWrite& task,
                           cudaStream_t stream);

}  // namespace tandem::cuda
