#include "common/engine/cpu/kv_pages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/check.h"

namespace tandem::engine {
namespace {

constexpr uint32_t kTokens = kv::kBlockTokens;

const float* qkv_row(const SequenceView& sequence, uint32_t position, Activation qkv) {
  const int64_t row = int64_t{sequence.first_row} + position - sequence.start;
  return static_cast<const float*>(qkv.data) + row * qkv.cols;
}

}  // namespace

KvElements kv_elements(kv::KvFormat format) {
  using cpu::KvElement;
  switch (format) {
    case kv::KvFormat::kF32:
      return {KvElement::kF32, KvElement::kF32};
    case kv::KvFormat::kBf16:
      return {KvElement::kBf16, KvElement::kBf16};
    case kv::KvFormat::kInt8:
      return {KvElement::kInt8, KvElement::kInt8};
    case kv::KvFormat::kK8V4:
      return {KvElement::kInt8, KvElement::kInt4};
    case kv::KvFormat::kInt4:
      return {KvElement::kInt4, KvElement::kInt4};
    case kv::KvFormat::kFp8E4M3:
      return {KvElement::kFp8, KvElement::kFp8};
  }
  TANDEM_CHECK(false, "KV format outside its enumeration");
  return {};
}

std::byte* key_section(const kv::KvLayout& layout, std::byte* page, uint32_t head) {
  return page + head * layout.head_bytes();
}
std::byte* value_section(const kv::KvLayout& layout, std::byte* page, uint32_t head) {
  return key_section(layout, page, head) + layout.k_section_bytes();
}
void KvWriter::write(const StepView& step, uint32_t layer, const QkvParams& params,
                     const float* q_norm, const float* k_norm, Activation qkv, const KvPages& kv) {
  const Job job{step, layer, params, q_norm, k_norm, qkv, kv};
  items_.clear();
  for (uint32_t s = 0; s < step.sequences.size(); ++s) {
    const SequenceView& sequence = step.sequences[s];
    if (sequence.rows == 0) continue;
    const uint32_t last = (sequence.start + sequence.rows - 1) / kTokens;
    for (uint32_t page = sequence.start / kTokens; page <= last; ++page)
      items_.push_back({s, page});
  }
  if (kv.layout.needs_tail()) keep_tails(job);
  pool_.split(static_cast<int64_t>(items_.size()), 1, [&](uint32_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) write_page(job, items_[static_cast<size_t>(i)]);
  });
}

void KvWriter::keep_tails(const Job& job) {
  const size_t bytes = job.kv.layout.tail_layout().page_bytes();
  kept_at_.assign(job.step.sequences.size(), -1);
  size_t used = 0;
  for (size_t s = 0; s < job.step.sequences.size(); ++s) {
    const SequenceView& sequence = job.step.sequences[s];
    const uint32_t end = sequence.start + sequence.rows;
    const bool reopens = sequence.start % kTokens != 0 && end % kTokens != 0 &&
                         sequence.start / kTokens != end / kTokens;
    if (!reopens) continue;
    if (kept_.size() < used + bytes) kept_.resize(used + bytes);
    std::memcpy(kept_.data() + used, job.kv.open_page(job.layer, sequence.tail).data(), bytes);
    kept_at_[s] = static_cast<int64_t>(used);
    used += bytes;
  }
}

void KvWriter::rotate(const Job& job, float* row, uint32_t position) const {
  const AttentionShape& shape = job.params.shape;
  const RopeTable& table = job.params.rope;
  const int64_t half = table.rotary_dim / 2;
  const float* cos = table.cos + position * half;
  const float* sin = table.sin + position * half;
  const uint32_t count = shape.heads + shape.kv_heads;  // q heads, then k heads
  for (uint32_t h = 0; h < count; ++h) {
    float* head = row + int64_t{h} * shape.head_dim;
    const float* norm = h < shape.heads ? job.q_norm : job.k_norm;
    if (norm != nullptr)
      kernels_.rows.rms_norm(head, norm, job.params.norm_eps, shape.head_dim, head);
    kernels_.rows.rope(head, cos, sin, half);
  }
}

void KvWriter::write_page(const Job& job, const Item& item) {
  const SequenceView& sequence = job.step.sequences[item.sequence];
  const QkvColumns columns(job.params.shape);
  const kv::KvLayout& layout = job.kv.layout;
  const uint32_t begin = std::max(sequence.start, item.page * kTokens);
  const uint32_t end = std::min(sequence.start + sequence.rows, (item.page + 1) * kTokens);
  for (uint32_t position = begin; position < end; ++position)
    rotate(job, const_cast<float*>(qkv_row(sequence, position, job.qkv)), position);

  const bool full = end == (item.page + 1) * kTokens;
  if (layout.needs_tail() && full) return seal_page(job, item);
  const bool open = layout.needs_tail();
  const kv::KvLayout target = open ? layout.tail_layout() : layout;
  const KvElements elements = kv_elements(target.format);
  std::byte* page = open ? job.kv.open_page(job.layer, sequence.tail).data()
                         : job.kv.page(job.layer, sequence.blocks[item.page]).data();
  for (uint32_t position = begin; position < end; ++position) {
    const float* row = qkv_row(sequence, position, job.qkv);
    const int64_t token = position % kTokens;
    for (uint32_t h = 0; h < layout.kv_heads; ++h) {
      const int64_t column = int64_t{h} * columns.head_dim;
      kernels_.kv.store_key(elements.key, row + columns.key + column, columns.head_dim, token,
                            key_section(target, page, h));
      kernels_.kv.store_value(elements.value, row + columns.value + column, columns.head_dim, token,
                              value_section(target, page, h));
    }
  }
}

// Encodes a page that this step has filled, from rows rounded as the tail page rounds them, so that
// the bytes do not depend on how the prompt was cut.
void KvWriter::seal_page(const Job& job, const Item& item) const {
  const kv::KvLayout& layout = job.kv.layout;
  const kv::KvLayout tail = layout.tail_layout();
  const KvElements exact = kv_elements(tail.format);
  const KvElements stored = kv_elements(layout.format);
  const QkvColumns columns(job.params.shape);
  const int64_t stride = cpu::value_stride(columns.head_dim);
  std::vector<std::byte> scratch(tail.head_bytes());
  std::vector<float> rows(static_cast<size_t>(kTokens * stride));
  const SequenceView& sequence = job.step.sequences[item.sequence];
  std::byte* page = job.kv.page(job.layer, sequence.blocks[item.page]).data();
  for (uint32_t h = 0; h < layout.kv_heads; ++h) {
    const std::byte* head = exact_head(job.step, item.sequence, job.layer, item.page, h, columns,
                                       job.qkv, job.kv, scratch.data());
    kernels_.kv.load_values(exact.key, head, columns.head_dim, kTokens, rows.data());
    kernels_.kv.store_keys_int4(rows.data(), stride, columns.head_dim,
                                key_section(layout, page, h));
    kernels_.kv.load_values(exact.value, head + tail.k_section_bytes(), columns.head_dim, kTokens,
                            rows.data());
    for (int64_t t = 0; t < kTokens; ++t)
      kernels_.kv.store_value(stored.value, rows.data() + t * stride, columns.head_dim, t,
                              value_section(layout, page, h));
  }
}

const std::byte* KvWriter::exact_head(const StepView& step, size_t sequence_index, uint32_t layer,
                                      uint32_t page, uint32_t head, const QkvColumns& columns,
                                      Activation qkv, const KvPages& kv, std::byte* scratch) const {
  const SequenceView& sequence = step.sequences[sequence_index];
  const kv::KvLayout tail = kv.layout.tail_layout();
  std::byte* current = kv.open_page(layer, sequence.tail).data();
  if ((page + 1) * kTokens > sequence.start + sequence.rows)
    return key_section(tail, current, head);

  const uint32_t begin = std::max(sequence.start, page * kTokens);
  if (const uint32_t before = begin % kTokens; before != 0) {
    const int64_t kept = kept_at_[sequence_index];
    const std::byte* old = kept < 0 ? current : kept_.data() + kept;
    const std::byte* from = old + head * tail.head_bytes();
    const size_t k_bytes = tail.k_section_bytes() / kTokens * before;
    const size_t v_bytes = tail.v_section_bytes() / kTokens * before;
    std::memcpy(scratch, from, k_bytes);
    std::memcpy(scratch + tail.k_section_bytes(), from + tail.k_section_bytes(), v_bytes);
  }
  const KvElements elements = kv_elements(tail.format);
  for (uint32_t position = begin; position < (page + 1) * kTokens; ++position) {
    const float* row = qkv_row(sequence, position, qkv) + int64_t{head} * columns.head_dim;
    kernels_.kv.store_key(elements.key, row + columns.key, columns.head_dim, position % kTokens,
                          scratch);
    kernels_.kv.store_value(elements.value, row + columns.value, columns.head_dim,
                            position % kTokens, scratch + tail.k_section_bytes());
  }
  return scratch;
}

}  // namespace tandem::engine
