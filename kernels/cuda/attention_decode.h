#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/cuda/step.h"

// Attention of few query rows per sequence (1 .. kDecodeMaxRows) over paged keys and values of any
// format, read as stored: the decode side of Ops::attention. plan_decode() is host code and runs
// once a step (once for each distinct window); attention_decode() runs once a layer and shares it.
//
// The keys of a sequence are cut into splits whose size depends on its own context alone
// (decode_split_pages), and the results of splits are merged in their order, so a row's result does
// not depend on what else is in the step, nor on the number of SMs.
namespace tandem::cuda {

inline constexpr uint32_t kDecodeMaxRows = 16;

struct DecodeShape {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t window = 0;  // keys a query sees, its own included; 0: all
  kv::KvFormat format = kv::KvFormat::kBf16;

  [[nodiscard]] constexpr uint32_t group() const { return heads / kv_heads; }
};

// One block's unit of work: the keys of one split for some columns (query row, head of the group)
// of one KV head. Holds all that the kernel needs to know, so that nothing waits for a second look.
struct alignas(16) DecodeUnit {
  uint32_t slot = 0;
  uint32_t first_row = 0;  // of the sequence, as in its slot
  uint32_t rows = 0;
  uint32_t start = 0;
  uint32_t blocks = 0;  // where the block of first_page stands in DeviceStep::blocks
  uint32_t first_page = 0;
  uint32_t pages = 0;    // to read as stored; may be 0
  uint32_t partial = 0;  // result index of the first split of the same columns
  uint32_t counter = 0;  // splits of the same columns count their arrivals here
  uint16_t kv_head = 0;
  uint16_t first_column = 0;  // column = row * group + head of the group
  uint16_t split = 0;
  uint16_t splits = 0;  // 1: the result is final
  uint32_t exact = 0;   // 1: also the pages that needs_tail() layouts read exactly
};

struct DecodePlan {
  std::vector<DecodeUnit> units;
  std::vector<uint32_t> ranges;  // [blocks + 1]: block b takes units ranges[b] .. ranges[b+1]-1
};

// How large buffers must be for every step of at most `sequences` sequences of `rows` rows each and
// contexts up to `max_context`.
struct DecodeLimits {
  size_t units = 0;
  size_t partials = 0;
  size_t counters = 0;
};

// Columns that one unit takes: what the accumulators of the kernel hold.
[[nodiscard]] uint32_t decode_columns(const DecodeShape& shape, uint32_t max_rows);
// Pages of one split, for a sequence of `context` keys.
[[nodiscard]] uint32_t decode_split_pages(uint32_t context);
[[nodiscard]] DecodeLimits decode_limits(const DecodeShape& shape, uint32_t sequences,
                                         uint32_t rows, uint32_t max_context);
// Bytes of the workspace for `partials` results.
[[nodiscard]] size_t decode_partial_bytes(const DecodeShape& shape, uint32_t max_rows,
                                          size_t partials);
// `max_rows` is what the launch will say (DeviceStep::max_rows); slots with rows 0 get no work.
void plan_decode(const DecodeShape& shape, std::span<const SequenceSlot> slots, uint32_t max_rows,
                 uint32_t blocks, DecodePlan& plan);

struct DecodeAttention {
  DecodeShape shape;
  uint32_t layer = 0;
  float scale = 0.0F;                 // of q.k before the softmax
  const Bf16* qkv = nullptr;          // as kv_write left it
  const void* kept = nullptr;         // as given to kv_write
  Bf16* out = nullptr;                // [rows][heads * head_dim]
  const DecodeUnit* units = nullptr;  // device, the plan's
  const uint32_t* ranges = nullptr;   // device, [blocks + 1]
  uint32_t blocks = 0;                // as planned for; the number of SMs
  void* partials = nullptr;           // decode_partial_bytes()
  uint32_t* counters = nullptr;       // zero before the first launch and left zero by each
};

// Enqueues; neither allocates nor waits. Rows of padding slots are not written. Fails with
// cudaErrorInvalidValue for step.max_rows above kDecodeMaxRows or a head_dim odd or above 256.
cudaError_t attention_decode(const DeviceStep& step, const DeviceKv& kv,
                             const DecodeAttention& task, cudaStream_t stream);

}  // namespace tandem::cuda
