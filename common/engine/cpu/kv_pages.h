#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/engine/cpu/thread_pool.h"
#include "common/engine/ops.h"
#include "kernels/cpu/kernels.h"

namespace tandem::engine {

// How the kernels see a layout's two sides.
struct KvElements {
  cpu::KvElement key = cpu::KvElement::kBf16;
  cpu::KvElement value = cpu::KvElement::kBf16;
};
[[nodiscard]] KvElements kv_elements(kv::KvFormat format);

// Columns of a qkv row.
struct QkvColumns {
  explicit QkvColumns(const AttentionShape& shape)
      : head_dim(shape.head_dim),
        key(int64_t{shape.heads} * shape.head_dim),
        value(key + int64_t{shape.kv_heads} * shape.head_dim) {}
  int64_t head_dim;
  int64_t key;
  int64_t value;
};

// One side of one head in a page.
[[nodiscard]] std::byte* key_section(const kv::KvLayout& layout, std::byte* page, uint32_t head);
[[nodiscard]] std::byte* value_section(const kv::KvLayout& layout, std::byte* page, uint32_t head);

// Turns the k and v columns of a step into pages, and finds the exact rows again that the attention
// of the same layer needs. write() for a layer, then attention for it; device thread only.
class KvWriter {
 public:
  KvWriter(ThreadPool& pool, const cpu::KernelTable& kernels) : pool_(pool), kernels_(kernels) {}

  void write(const StepView& step, uint32_t layer, const QkvParams& params, const float* q_norm,
             const float* k_norm, Activation qkv, const KvPages& kv);

  // Layouts with a tail: one head of page `page` as the queries in it see it, in the tail layout
  // (its K section, then its V section). Points into the tail page, or is put together in `scratch`
  // (tail_layout().head_bytes()) when the step has filled the page.
  [[nodiscard]] const std::byte* exact_head(const StepView& step, size_t sequence, uint32_t layer,
                                            uint32_t page, uint32_t head, const QkvColumns& columns,
                                            Activation qkv, const KvPages& kv,
                                            std::byte* scratch) const;

 private:
  struct Item {
    uint32_t sequence = 0;
    uint32_t page = 0;
  };
  struct Job {
    const StepView& step;
    uint32_t layer;
    const QkvParams& params;
    const float* q_norm;
    const float* k_norm;
    Activation qkv;
    const KvPages& kv;
  };

  void keep_tails(const Job& job);
  void rotate(const Job& job, float* row, uint32_t position) const;
  void write_page(const Job& job, const Item& item);
  void seal_page(const Job& job, const Item& item) const;

  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
  std::vector<Item> items_;
  // Tail pages as they were before the step, of sequences that fill their open page and open
  // another.
  std::vector<std::byte> kept_;
  std::vector<int64_t> kept_at_;  // per sequence: offset into kept_, or -1
};

}  // namespace tandem::engine
