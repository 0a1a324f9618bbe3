#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/step.h"

// Fills the workspace of prefill attention (attention_prefill.h says how it is laid out) from the
// pool, after kv_write of the same layer: each sequence's keys and values, dequantized, and zeros
// up to the end of its span. Layouts with needs_tail(): also the exact workspace.
namespace tandem::cuda {

struct KvGather {
  uint32_t layer = 0;
  uint32_t heads = 0;                          // query heads, for the columns of qkv
  const PrefillSequence* sequences = nullptr;  // device, [step.sequences]; rows 0: left out
  void* keys = nullptr;                        // bf16 [kv_heads][positions][head_dim]
  void* values = nullptr;
  uint32_t positions = 0;
  void* exact_keys = nullptr;  // layouts with needs_tail(), else null
  void* exact_values = nullptr;
  uint32_t exact_positions = 0;
  const Bf16* qkv = nullptr;  // as kv_write left it
  void* kept = nullptr;       // as given to kv_write
};

// Enqueues; neither allocates nor waits. Layouts with needs_tail(): the page that stays open is not
// in the pool, and zeros in `keys` and `values`.
cudaError_t kv_gather(const DeviceStep& step, const DeviceKv& kv, const KvGather& task,
                      cudaStream_t stream);

}  // namespace tandem::cuda
