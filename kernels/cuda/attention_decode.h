#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/cuda/step.h"

// Attention of few query rows a sequence over paged keys and values of any format, read as stored:
// the decode side of Ops::write_kv and Ops::attention. plan_decode() is host code and runs once a
// step (once for each distinct window); attention_decode() runs once a layer and shares it.
//
// A sequence has one row, or up to kDecodeRows: several guesses of its next tokens to be verified
// at once. Pairs of a row and a head of a group are the columns of units; a row has the same bits
// as it has alone, but where its window, or a context that just passed a length, moves the cuts.
//
// The keys of a sequence are cut into splits whose results are merged in their order. In steps of
// up to kDecodeFewSequences sequences the cuts depend on a sequence's own context alone, so a row's
// result does not depend on what else is in the step, nor on the number of SMs; in larger ones,
// whose projections depend on their number of rows anyway, they fall where they keep all SMs
// equally busy.
namespace tandem::cuda {

inline constexpr uint32_t kDecodeFewSequences = 16;
// Columns that one unit takes: heads of a group, of one row after the other.
inline constexpr uint32_t kDecodeColumns = 8;
// Rows of one sequence.
inline constexpr uint32_t kDecodeRows = 16;

// Splits that the results of one head are merged of, at most.
inline constexpr uint32_t kDecodeMostSplits = 34;
// Warps of a block that walk over pages: page i of a unit belongs to walker i mod this many. With
// the helper warp there are eight, so that of two blocks a multiprocessor's register file gives
// each thread 128; with one warp more it would be 96, too few.
[[nodiscard]] constexpr uint32_t decode_walkers(uint32_t head_dim) {
  return head_dim > 128 ? 4 : 7;
}

struct DecodeShape {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t window = 0;  // keys a query sees, its own included; 0: all
  kv::KvFormat format = kv::KvFormat::kBf16;

  [[nodiscard]] constexpr uint32_t group() const { return heads / kv_heads; }
};

// One block's unit of work: the keys of one split for some columns of one KV head. Holds all that
// the kernel needs to know, so that nothing waits for a second look.
struct alignas(16) DecodeUnit {
  uint32_t slot = 0;
  uint32_t row = 0;     // in the packed batch: the first of `rows` of the sequence
  uint32_t start = 0;   // its position
  uint32_t blocks = 0;  // where the block of first_page stands in DeviceStep::blocks
  uint32_t first_page = 0;
  uint32_t pages = 0;    // to read as stored; may be 0
  uint32_t partial = 0;  // result index of the first split of the same columns
  uint32_t counter = 0;  // splits of the same columns count their arrivals here
  uint16_t kv_head = 0;
  uint16_t first_column = 0;  // of rows * group, row after row
  uint16_t split = 0;
  uint16_t splits = 0;  // 1: the result is final
  uint32_t exact = 0;   // 1 + tail slot: also the page that needs_tail() layouts read exactly
  uint32_t rows = 1;    // in such layouts, all in that page
};

struct DecodePlan {
  std::vector<DecodeUnit> units;
  std::vector<uint32_t> ranges;  // [blocks + 1]: block b takes units ranges[b] .. ranges[b+1]-1
};

// The largest of everything that steps may have.
struct DecodeSteps {
  uint32_t sequences = 1;
  uint32_t sequence_rows = 1;
  uint32_t rows = 1;  // of all sequences
  uint32_t blocks = 1;
  uint32_t max_context = 1;
};
// How large buffers must be for all of them.
struct DecodeLimits {
  size_t units = 0;
  size_t partials = 0;
  size_t counters = 0;
};

// Pages of one split in steps of few sequences, for a sequence of `context` keys.
[[nodiscard]] uint32_t decode_split_pages(const DecodeShape& shape, uint32_t context);
// Blocks to plan a step of `rows` rows for.
[[nodiscard]] uint32_t decode_blocks(uint32_t rows, uint32_t multiprocessors);
[[nodiscard]] DecodeLimits decode_limits(const DecodeShape& shape, const DecodeSteps& steps);
// Bytes of the workspace for `partials` results.
[[nodiscard]] size_t decode_partial_bytes(const DecodeShape& shape, size_t partials);
// Slots have up to kDecodeRows rows. Those without any get no work but count as sequences.
void plan_decode(const DecodeShape& shape, std::span<const SequenceSlot> slots, uint32_t blocks,
                 DecodePlan& plan);

struct DecodeAttention {
  DecodeShape shape;
  uint32_t layer = 0;
  float scale = 0.0F;  // of q.k before the softmax
  // As KvWrite's.
  DeviceRope rope;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_eps = 0;
  Bf16* qkv = nullptr;  // as the projection left it; may be changed
  void* kept = nullptr;
  Bf16* out = nullptr;                // [rows][heads * head_dim]
  const DecodeUnit* units = nullptr;  // device, the plan's
  const uint32_t* ranges = nullptr;   // device, [blocks + 1]
  uint32_t blocks = 0;                // as planned for
  void* partials = nullptr;           // decode_partial_bytes()
  uint32_t* counters = nullptr;       // zero before the first launch and left zero by each
  // kv_write() came before, for all of the step: then slots may have several rows.
  bool written = false;
};

// What kv_write() does, unless it came before, then attention: norms and RoPE on queries and keys,
// the step's keys and values into the pool, results into `out`. Enqueues; neither allocates nor
// waits. Rows of padding slots are not written. Fails with cudaErrorInvalidValue for step.max_rows
// above 1 (kDecodeRows where the step is written), a head_dim odd or above 256 or a rotary_dim
// above it.
cudaError_t attention_decode(const DeviceStep& step, const DeviceKv& kv,
                             const DecodeAttention& task, cudaStream_t stream);

}  // namespace tandem::cuda
