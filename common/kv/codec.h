#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/layout.h"

namespace tandem::kv {

// Scalar reference of the KV codec. It *defines* the bytes of every format: SIMD and GPU encoders
// must produce the same bytes, decoders the same floats, for every input. The rules below are
// written so that any vector width can follow them: all arithmetic is IEEE float32, element-wise,
// rounded to nearest even, and the only sums are of small integers, which are exact in any order.
// No operation below may be contracted into a fused multiply-add except where fma() is written
// (build encoders with -ffp-contract=off). half() is float32 -> binary16, to nearest even.
//
// Inputs, quantized formats: clean(x) = 0 for NaN, else x clamped to [-65504, 65504], and -0
// becomes +0 (x + 0.0f). kF32 copies bits; kBf16 rounds to nearest even and keeps NaN and
// infinities.
//
// int8 row of n values (K or V of one token and head):
//   a = max |x|.  a < 2^-24: scale 0, every q 0.
//   h = half(a * (1/127 as float32)); if float(h) * 127 < a, h becomes the next larger half.
//   r = 1 / float(h);  q = clamp(rint(x * r), -127, 127).
// Decoded: q * float(h).
//
// fp8_e4m3 row of n values (K or V of one token and head), like int8 with 448 for 127:
//   a = max |x|.  a < 2^-24: scale 0, every element +0.
//   h = half(a * (1/448 as float32)); if float(h) * 448 < a, h becomes the next larger half.
//   r = 1 / float(h);  element = e4m3(x * r).
// e4m3() is OCP float8 e4m3 ("fn": no infinities): to nearest even, magnitudes that round beyond
// 448 become 448 (saturating), subnormals kept. The two NaN codes (0x7f, 0xff) are never written;
// a reader may take them for NaN or for +-480.
// Decoded: float(element) * float(h).
//
// Four-bit group of n <= 32 values (V: kV4Group channels of one token; K: one channel's 16 tokens):
//   lo = min x, range = max x - lo.  range < 2^-20: scale 0, minimum half(lo), every q 0.
//   u = rint((x - lo) * (960 / range)): an integer 0 .. 960.
//   For each candidate c of kFitCandidates, in order:
//     t = clamp(rint((u - c.offset) * (1/c.step as float32)), 0, 15)
//     cost = sum of (u - c.offset - t * c.step)^2
//   The candidate with the smallest cost wins, the earlier one when equal. Then
//   unit = range / 960
//   minimum = half(fma(offset, unit, lo)),  scale = half(step * unit)
//   q = clamp(rint((x - float(minimum)) * (1 / float(scale))), 0, 15).
// Decoded: q * float(scale) + float(minimum) (the product is exact, so fused or not is the same).
//
// The candidates move the ends of the 16-level grid by up to half a step inside the data's range:
// with few values a group the ends then still round to themselves while the other 14 levels lie
// closer together. On 16 to 32 normal or Laplace values this takes 16-19 % off the squared error of
// plain min/max.
//
// Padding between sections is written as zero by encode_section.

struct FitCandidate {
  float offset;  // in 1/960 of the range
  float step;
};
inline constexpr float kFitUnits = 960.0F;
inline constexpr FitCandidate kFitCandidates[] = {
    {0, 64}, {0, 62}, {30, 62}, {15, 62}, {15, 63}, {0, 63},
};
inline constexpr float kMaxMagnitude = 65504.0F;  // largest finite half
inline constexpr float kMinAmplitude = 0x1p-24F;  // int8, fp8: below, a row is zero
inline constexpr float kMaxE4m3 = 448.0F;         // largest e4m3
inline constexpr float kMinRange = 0x1p-20F;      // four bits: below, a group is constant

enum class KvSide : uint8_t { kK, kV };

// float8 e4m3fn from and to float, as the rules above say; NaN becomes 0x7f.
[[nodiscard]] uint8_t float_to_e4m3(float f);
[[nodiscard]] float e4m3_to_float(uint8_t bits);

// Whether a token's row of this side can be encoded alone. False only for K of kInt4, whose scales
// span the 16 tokens of a page.
[[nodiscard]] bool row_coded(const KvLayout& layout, KvSide side);

// Where a section keeps its scales (and, after them, minima): bytes from the section's start. 0 for
// formats without scales.
[[nodiscard]] size_t scale_offset(const KvLayout& layout, KvSide side);
// Bytes of one token's row of elements (scales not counted).
[[nodiscard]] size_t row_bytes(const KvLayout& layout, KvSide side);
// Byte offset of a head's section within a page.
[[nodiscard]] inline size_t section_offset(const KvLayout& layout, uint32_t head, KvSide side) {
  return head * layout.head_bytes() + (side == KvSide::kV ? layout.k_section_bytes() : 0);
}

// Encodes `row[head_dim]` as token `token` (0 .. 15) of a section. Needs row_coded(). Touches only
// this token's elements and scales.
void encode_row(const KvLayout& layout, KvSide side, uint32_t token, const float* row,
                std::byte* section);

// Encodes a whole section, token t's row at rows + t * stride. Every format.
void encode_section(const KvLayout& layout, KvSide side, const float* rows, size_t stride,
                    std::byte* section);

// Decodes token `token` of a section into out[head_dim]. Every format.
void decode_row(const KvLayout& layout, KvSide side, const std::byte* section, uint32_t token,
                float* out);

// Encodes a full page from its tail page (layouts with needs_tail()). These formats are *always*
// encoded from rows rounded to bf16, whether or not they passed through a tail page, so that the
// bytes do not depend on how the prompt was cut into chunks.
void seal_tail(const KvLayout& layout, const std::byte* tail_page, std::byte* page);

}  // namespace tandem::kv
