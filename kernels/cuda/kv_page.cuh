#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/step.h"

// Where things lie in KV pages and in a step, for kernels. The layout's own arithmetic is host
// code; PageShape carries its results.
namespace tandem::cuda {

inline constexpr uint32_t kPageTokens = kv::kBlockTokens;

struct PageShape {
  uint32_t head_dim = 0;
  uint32_t kv_heads = 0;
  uint32_t k_bytes = 0;     // K section of one head; its V section follows
  uint32_t head_bytes = 0;  // both
  uint64_t page_bytes = 0;

  explicit PageShape(const kv::KvLayout& layout)
      : head_dim(layout.head_dim),
        kv_heads(layout.kv_heads),
        k_bytes(static_cast<uint32_t>(layout.k_section_bytes())),
        head_bytes(static_cast<uint32_t>(layout.head_bytes())),
        page_bytes(layout.page_bytes()) {}
};

// Pages of one layer of the pool, and its tail pages and kept rows where the layout has them.
struct LayerPages {
  PageShape shape;
  PageShape tail_shape;
  std::byte* pages = nullptr;
  std::byte* tail = nullptr;
  std::byte* kept = nullptr;

  LayerPages(const DeviceKv& kv, uint32_t layer, void* kept_rows)
      : shape(kv.layout),
        tail_shape(kv.layout.tail_layout()),
        pages(kv.pages + size_t{layer} * kv.blocks * shape.page_bytes),
        tail(kv.tail == nullptr ? nullptr
                                : kv.tail + size_t{layer} * kv.tails * tail_shape.page_bytes),
        kept(static_cast<std::byte*>(kept_rows)) {}

  __device__ std::byte* head(uint32_t block, uint32_t kv_head) const {
    return pages + block * shape.page_bytes + uint64_t{kv_head} * shape.head_bytes;
  }
  __device__ std::byte* tail_head(uint32_t slot, uint32_t kv_head) const {
    return tail + slot * tail_shape.page_bytes + uint64_t{kv_head} * tail_shape.head_bytes;
  }
  __device__ std::byte* kept_head(uint32_t sequence, uint32_t kv_head) const {
    return kept + sequence * tail_shape.page_bytes + uint64_t{kv_head} * tail_shape.head_bytes;
  }
};

// The step fills the sequence's open page and opens another: the rows that were in it are then in
// the kept rows, for the tail page holds those of the new one.
__host__ __device__ inline bool reopens(const SequenceSlot& slot) {
  const uint32_t end = slot.start + slot.rows;
  return slot.start % kPageTokens != 0 && end % kPageTokens != 0 &&
         slot.start / kPageTokens != end / kPageTokens;
}

// Columns of a row of the packed qkv activation.
struct QkvColumns {
  uint32_t head_dim = 0;
  uint32_t key = 0;
  uint32_t value = 0;
  uint32_t row = 0;  // elements from row to row

  QkvColumns(uint32_t heads, uint32_t kv_heads, uint32_t dim)
      : head_dim(dim), key(heads * dim), value(key + kv_heads * dim), row(value + kv_heads * dim) {}
};

// Layouts with needs_tail(), after kv_write: key and value of one head at `position`, which lies in
// a page that the step writes to, unquantized.
struct ExactRow {
  const Bf16* key = nullptr;
  const Bf16* value = nullptr;
};
__device__ inline ExactRow exact_row(const SequenceSlot& slot, uint32_t sequence, uint32_t kv_head,
                                     uint32_t position, const Bf16* qkv, const QkvColumns& columns,
                                     const LayerPages& layer) {
  if (position >= slot.start) {
    const Bf16* row = qkv + uint64_t{slot.first_row + position - slot.start} * columns.row +
                      uint64_t{kv_head} * columns.head_dim;
    return {row + columns.key, row + columns.value};
  }
  const std::byte* head =
      reopens(slot) ? layer.kept_head(sequence, kv_head) : layer.tail_head(slot.tail, kv_head);
  const uint32_t at = position % kPageTokens * columns.head_dim;
  return {reinterpret_cast<const Bf16*>(head) + at,
          reinterpret_cast<const Bf16*>(head + layer.tail_shape.k_bytes) + at};
}

}  // namespace tandem::cuda
