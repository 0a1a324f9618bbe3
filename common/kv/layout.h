#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::kv {

// Tokens in one KV block, on every node and on the wire.
inline constexpr uint32_t kBlockTokens = 16;

// How keys and values are stored, and therefore shipped. Scales and minima are IEEE half precision.
enum class KvFormat : uint8_t {
  kF32,  // reference runs only
  kBf16,
  kInt8,  // symmetric, one scale per token and head, for K and for V
  kK8V4,  // K as kInt8; V four bits, asymmetric per token and group of kV4Group channels
  kInt4,  // K four bits, asymmetric per channel and page; V as in kK8V4; the open page stays bf16
  kFp8E4M3,  // float8 e4m3fn, one scale per token and head, for K and for V
};

[[nodiscard]] std::string_view to_string(KvFormat f);  // "f32", …, "fp8_e4m3"
[[nodiscard]] Result<KvFormat> parse_kv_format(std::string_view name);

// Channels that share one scale and minimum in a four-bit V row (head_dim when that is smaller).
inline constexpr uint32_t kV4Group = 32;
// Groups of one V row; the last one is narrower when head_dim is not a multiple of kV4Group.
[[nodiscard]] constexpr uint32_t v4_groups(uint32_t head_dim) {
  return (head_dim + kV4Group - 1) / kV4Group;
}

// A *page* is one layer of one block: for each KV head, its K section then its V section, sections
// padded to 16 bytes. Inside a section tokens are rows of head_dim elements:
//   f32, bf16   element[16][head_dim]
//   int8        int8[16][head_dim], then half scale[16]                  x = q * scale
//   fp8_e4m3    e4m3[16][head_dim], then half scale[16]                  x = q * scale
//   4-bit V     uint8[16][head_dim/2] (channel 2c low nibble, 2c+1 high),
//               then half scale[16][groups], half minimum[16][groups]    x = q * scale + minimum
//   4-bit K     uint8[16][head_dim/2] likewise,
//               then half scale[head_dim], half minimum[head_dim]        x = q * scale + minimum
// head_dim must be even. kF32 and kBf16 pages double as the *tail page* format.
struct KvLayout {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // on this rank
  uint32_t head_dim = 0;
  KvFormat format = KvFormat::kBf16;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

  [[nodiscard]] size_t k_section_bytes() const;  // one head's K in one page
  [[nodiscard]] size_t v_section_bytes() const;
  [[nodiscard]] size_t head_bytes() const { return k_section_bytes() + v_section_bytes(); }
  [[nodiscard]] size_t page_bytes() const { return kv_heads * head_bytes(); }
  [[nodiscard]] size_t block_bytes() const { return layers * page_bytes(); }
  // What the same block would take in bf16: the denominator of every compression ratio.
  [[nodiscard]] size_t bf16_block_bytes() const;

  // True when a page can only be encoded once all its 16 tokens are known. Rows of the open page
  // are then kept in a tail page of `tail_layout()`, and a query reads the page it lies in exactly
  // and all earlier pages as stored, so results do not depend on how a prompt was cut into chunks.
  [[nodiscard]] bool needs_tail() const { return format == KvFormat::kInt4; }
  [[nodiscard]] KvLayout tail_layout() const;

  // One line naming every field, for the handshake's diff and the logs.
  [[nodiscard]] std::string describe() const;
};

[[nodiscard]] Status validate(const KvLayout& layout);

}  // namespace tandem::kv
