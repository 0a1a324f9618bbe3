#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Causal attention of many query rows over contiguous keys and values, ragged batches packed
// without padding: the prefill side of Ops::attention. plan_prefill() is host code and runs once a
// step; attention_prefill() runs once a layer and shares that plan.
//
// Workspace: `keys` and `values` are bf16 [kv_heads][positions][head_dim] each. A sequence owns the
// positions kv_offset .. kv_offset + prefill_span(context) - 1 of every head, where context = start
// + rows and kv_offset is a multiple of kPrefillAlign. Whoever fills the workspace writes the keys
// and values 0 .. context-1 and zeros up to the end of the span: those are read too (and masked,
// which would not stop a NaN in a value).
namespace tandem::cuda {

// Spans of the workspace are whole multiples of this; a key tile divides it.
inline constexpr uint32_t kPrefillAlign = 128;
[[nodiscard]] constexpr uint32_t prefill_span(uint32_t context) {
  return (context + kPrefillAlign - 1) / kPrefillAlign * kPrefillAlign;
}

// What a step asks of one sequence: its new rows are the last `rows` positions of its context.
struct PrefillSequence {
  uint32_t first_row = 0;  // of q and out
  uint32_t rows = 0;       // 0: nothing to do
  uint32_t start = 0;      // position of the first row
  uint32_t kv_offset = 0;  // in the workspace, a multiple of kPrefillAlign
  // Layouts whose open page is read exactly (KvLayout::needs_tail()): position start - start%16 of
  // this sequence in the exact workspace, a multiple of kPrefillAlign. Its span there is
  // prefill_span(start%16 + rows), filled up with zeros likewise.
  uint32_t exact_offset = 0;
};

// One unit of the kernel's work: up to prefill_tile_rows() queries of one head of one sequence.
struct PrefillTile {
  uint32_t row = 0;       // of q and out
  uint32_t rows = 0;      // real ones
  uint32_t position = 0;  // of the first row
  uint32_t head = 0;      // query head
  uint32_t kv_offset = 0;
  uint32_t exact_offset = 0;  // of position - position%16; meaningless without exact workspaces
};

struct PrefillShape {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;  // 1..256, even
};

[[nodiscard]] uint32_t prefill_tile_rows(uint32_t head_dim);
// Most tiles that a step of at most this many rows and sequences can have: sizes the device buffer.
[[nodiscard]] size_t prefill_max_tiles(const PrefillShape& shape, uint32_t rows,
                                       uint32_t sequences);
// Appends the tiles of a step in the order in which the kernel should take them: costly ones first,
// heads that share keys side by side, and when keys outgrow `l2_bytes` one part of the heads after
// the other.
void plan_prefill(const PrefillShape& shape, std::span<const PrefillSequence> sequences,
                  size_t l2_bytes, std::vector<PrefillTile>& tiles);

struct PrefillAttention {
  PrefillShape shape;
  uint32_t window = 0;  // keys a query sees, its own included; 0: all
  float scale = 0.0F;   // of q.k before the softmax
  // bf16 [q_rows][q_stride], roped; query head h in columns h*head_dim ...
  const void* q = nullptr;
  uint64_t q_stride = 0;  // elements
  uint32_t q_rows = 0;    // of the buffer: rows past the step's are read, and dropped
  const void* keys = nullptr;
  const void* values = nullptr;
  uint32_t positions = 0;  // of each head in the workspace
  // Null, or the same keys and values unquantized, bf16 [kv_heads][exact_positions][head_dim]: a
  // query reads the 16-token page it lies in from here, earlier pages from `keys` and `values`.
  const void* exact_keys = nullptr;
  const void* exact_values = nullptr;
  uint32_t exact_positions = 0;
  void* out = nullptr;                 // bf16 [rows][out_stride], head h in columns h*head_dim ...
  uint64_t out_stride = 0;             // elements
  const PrefillTile* tiles = nullptr;  // device
  uint32_t tile_count = 0;
  // Device, [2], zero before the first launch and left zero by each; not shared by launches that
  // may overlap.
  uint32_t* counters = nullptr;
};

// Enqueues; neither allocates nor waits. Every pointer is aligned to 16 bytes.
cudaError_t attention_prefill(const PrefillAttention& args, cudaStream_t stream);

}  // namespace tandem::cuda
