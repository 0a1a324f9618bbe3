#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/kv/codec.h"
#include "kernels/cpu/kernels.h"

// The plain variant is the codec itself, which defines bytes and numbers of every format.
namespace tandem::cpu {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

kv::KvLayout layout_of(kv::KvFormat format, int64_t head_dim) {
  TANDEM_CHECK(head_dim <= kMaxHeadDim, "head_dim beyond what the reference kernels are for");
  return {1, 1, static_cast<uint32_t>(head_dim), format};
}

kv::KvLayout key_layout(KvElement e, int64_t head_dim) {
  switch (e) {
    case KvElement::kF32:
      return layout_of(kv::KvFormat::kF32, head_dim);
    case KvElement::kBf16:
      return layout_of(kv::KvFormat::kBf16, head_dim);
    case KvElement::kInt8:
      return layout_of(kv::KvFormat::kInt8, head_dim);
    case KvElement::kInt4:
      return layout_of(kv::KvFormat::kInt4, head_dim);
    case KvElement::kFp8:
      return layout_of(kv::KvFormat::kFp8E4M3, head_dim);
  }
  return {};
}

kv::KvLayout value_layout(KvElement e, int64_t head_dim) {
  return e == KvElement::kInt4 ? layout_of(kv::KvFormat::kK8V4, head_dim) : key_layout(e, head_dim);
}

void load_keys(KvElement e, const void* section, int64_t head_dim, int64_t valid, float* out) {
  std::array<float, kMaxHeadDim> row{};
  for (int64_t t = 0; t < kPageTokens; ++t) {
    if (t < valid)
      kv::decode_row(key_layout(e, head_dim), kv::KvSide::kK,
                     static_cast<const std::byte*>(section), static_cast<uint32_t>(t), row.data());
    else
      row.fill(0);
    for (int64_t d = 0; d < head_dim; ++d) out[d * kPageTokens + t] = row[static_cast<size_t>(d)];
  }
}

void load_values(KvElement e, const void* section, int64_t head_dim, int64_t valid, float* out) {
  const int64_t stride = (head_dim + 15) / 16 * 16;
  std::fill_n(out, kPageTokens * stride, 0.0F);
  for (int64_t t = 0; t < valid; ++t)
    kv::decode_row(value_layout(e, head_dim), kv::KvSide::kV,
                   static_cast<const std::byte*>(section), static_cast<uint32_t>(t),
                   out + t * stride);
}

void store_key(KvElement e, const float* row, int64_t head_dim, int64_t token, void* section) {
  kv::encode_row(key_layout(e, head_dim), kv::KvSide::kK, static_cast<uint32_t>(token), row,
                 static_cast<std::byte*>(section));
}

void store_value(KvElement e, const float* row, int64_t head_dim, int64_t token, void* section) {
  kv::encode_row(value_layout(e, head_dim), kv::KvSide::kV, static_cast<uint32_t>(token), row,
                 static_cast<std::byte*>(section));
}

void store_keys_int4(const float* rows, int64_t stride, int64_t head_dim, void* section) {
  kv::encode_section(layout_of(kv::KvFormat::kInt4, head_dim), kv::KvSide::kK, rows,
                     static_cast<size_t>(stride), static_cast<std::byte*>(section));
}

}  // namespace

constexpr KvKernels kKvReference{load_keys, load_values, store_key, store_value, store_keys_int4};

}  // namespace tandem::cpu
