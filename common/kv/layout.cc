#include "common/kv/layout.h"

#include "common/base/check.h"

namespace tandem::kv {
namespace {

constexpr size_t kSectionAlign = 16;
// Far above any model; keeps every byte count below 2^63 without checked arithmetic elsewhere.
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxKvHeads = 1024;
constexpr uint32_t kMaxHeadDim = 4096;

constexpr size_t padded(size_t bytes) {
  return (bytes + kSectionAlign - 1) / kSectionAlign * kSectionAlign;
}
size_t plain_bytes(size_t head_dim, size_t element) { return kBlockTokens * head_dim * element; }
// One byte an element and one half per token: int8 and fp8.
size_t int8_bytes(size_t head_dim) { return kBlockTokens * (head_dim + sizeof(uint16_t)); }
size_t k4_bytes(size_t head_dim) {
  return kBlockTokens * (head_dim / 2) + 2 * sizeof(uint16_t) * head_dim;
}
size_t v4_bytes(uint32_t head_dim) {
  return kBlockTokens * (head_dim / 2 + 2 * sizeof(uint16_t) * v4_groups(head_dim));
}

}  // namespace

std::string_view to_string(KvFormat f) {
  switch (f) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kInt8:
      return "int8";
    case KvFormat::kK8V4:
      return "k8v4";
    case KvFormat::kInt4:
      return "int4";
    case KvFormat::kFp8E4M3:
      return "fp8_e4m3";
  }
  TANDEM_CHECK(false, "KV format outside its enumeration");
  return {};
}

Result<KvFormat> parse_kv_format(std::string_view name) {
  for (const KvFormat f : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8E4M3, KvFormat::kInt8,
                           KvFormat::kK8V4, KvFormat::kInt4}) {
    if (name == to_string(f)) return f;
  }
  return fail(ErrorCode::kInvalidArgument,
              "unknown KV format '" + std::string(name) +
                  "'; known are bf16, fp8_e4m3, int8, k8v4, int4 and f32");
}

size_t KvLayout::k_section_bytes() const {
  switch (format) {
    case KvFormat::kF32:
      return padded(plain_bytes(head_dim, 4));
    case KvFormat::kBf16:
      return padded(plain_bytes(head_dim, 2));
    case KvFormat::kInt8:
    case KvFormat::kK8V4:
    case KvFormat::kFp8E4M3:
      return padded(int8_bytes(head_dim));
    case KvFormat::kInt4:
      return padded(k4_bytes(head_dim));
  }
  TANDEM_CHECK(false, "KV format outside its enumeration");
  return 0;
}

size_t KvLayout::v_section_bytes() const {
  switch (format) {
    case KvFormat::kF32:
      return padded(plain_bytes(head_dim, 4));
    case KvFormat::kBf16:
      return padded(plain_bytes(head_dim, 2));
    case KvFormat::kInt8:
    case KvFormat::kFp8E4M3:
      return padded(int8_bytes(head_dim));
    case KvFormat::kK8V4:
    case KvFormat::kInt4:
      return padded(v4_bytes(head_dim));
  }
  TANDEM_CHECK(false, "KV format outside its enumeration");
  return 0;
}

size_t KvLayout::bf16_block_bytes() const {
  return size_t{2} * layers * kv_heads * plain_bytes(head_dim, 2);
}

KvLayout KvLayout::tail_layout() const {
  KvLayout tail = *this;
  tail.format = KvFormat::kBf16;
  return tail;
}

std::string KvLayout::describe() const {
  return "format " + std::string(to_string(format)) + ", " + std::to_string(kBlockTokens) +
         " tokens a block, " + std::to_string(layers) + " layers, " + std::to_string(kv_heads) +
         " KV heads of " + std::to_string(head_dim) + ", V groups of " + std::to_string(kV4Group);
}

Status validate(const KvLayout& layout) {
  const auto bounded = [](uint32_t value, uint32_t limit, const char* field) -> Status {
    if (value >= 1 && value <= limit) return {};
    return fail(ErrorCode::kInvalidArgument,
                "KV layout: " + std::string(field) + " is " + std::to_string(value) +
                    ", but must be 1 to " + std::to_string(limit),
                field);
  };
  TANDEM_TRY(bounded(layout.layers, kMaxLayers, "layers"));
  TANDEM_TRY(bounded(layout.kv_heads, kMaxKvHeads, "kv_heads"));
  TANDEM_TRY(bounded(layout.head_dim, kMaxHeadDim, "head_dim"));
  if (layout.head_dim % 2 != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "KV layout: head_dim is " + std::to_string(layout.head_dim) +
                    ", but four-bit rows pack channels in pairs, so it must be even",
                "head_dim");
  }
  if (layout.format > KvFormat::kFp8E4M3) {
    return fail(ErrorCode::kInvalidArgument, "KV layout: unknown format number", "format");
  }
  return {};
}

}  // namespace tandem::kv
