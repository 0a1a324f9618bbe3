#include "common/kv/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "common/base/dtype.h"

namespace tandem::kv {
namespace {

// How one side of a layout keeps its elements.
enum class Coding : uint8_t { kF32, kBf16, kInt8, kE4m3, kFourBitRows, kFourBitChannels };

Coding coding(const KvLayout& layout, KvSide side) {
  switch (layout.format) {
    case KvFormat::kF32:
      return Coding::kF32;
    case KvFormat::kBf16:
      return Coding::kBf16;
    case KvFormat::kInt8:
      return Coding::kInt8;
    case KvFormat::kFp8E4M3:
      return Coding::kE4m3;
    case KvFormat::kK8V4:
      return side == KvSide::kK ? Coding::kInt8 : Coding::kFourBitRows;
    case KvFormat::kInt4:
      return side == KvSide::kK ? Coding::kFourBitChannels : Coding::kFourBitRows;
  }
  TANDEM_CHECK(false, "KV format outside its enumeration");
  return Coding::kBf16;
}

float clean(float x) {
  if (std::isnan(x)) return 0.0F;
  return std::clamp(x, -kMaxMagnitude, kMaxMagnitude) + 0.0F;
}

// Pages are byte arrays; halves in them are 2-byte aligned but typed access would alias.
uint16_t load_half(const std::byte* p, size_t index) {
  uint16_t bits = 0;
  std::memcpy(&bits, p + index * sizeof(bits), sizeof(bits));
  return bits;
}
void store_half(std::byte* p, size_t index, uint16_t bits) {
  std::memcpy(p + index * sizeof(bits), &bits, sizeof(bits));
}

struct Grid {
  uint16_t scale = 0;
  uint16_t minimum = 0;
};

// Fits the 16-level grid to n cleaned values and writes their levels.
Grid fit_group(const float* x, uint32_t n, uint8_t* q) {
  const auto [low, high] = std::minmax_element(x, x + n);
  const float lo = *low;
  const float range = *high - lo;
  if (range < kMinRange) {
    std::fill_n(q, n, uint8_t{0});
    return {0, float_to_half(lo)};
  }
  std::array<float, kV4Group> u{};
  const float to_units = kFitUnits / range;
  for (uint32_t i = 0; i < n; ++i) u[i] = std::nearbyint((x[i] - lo) * to_units);

  FitCandidate best = kFitCandidates[0];
  float best_cost = INFINITY;
  for (const FitCandidate& c : kFitCandidates) {
    const float per_step = 1.0F / c.step;
    float cost = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const float d = u[i] - c.offset;
      const float t = std::clamp(std::nearbyint(d * per_step), 0.0F, 15.0F);
      const float e = d - t * c.step;
      cost += e * e;
    }
    if (cost < best_cost) {
      best_cost = cost;
      best = c;
    }
  }
  const float unit = range / kFitUnits;
  const Grid grid{float_to_half(best.step * unit), float_to_half(std::fma(best.offset, unit, lo))};
  const float minimum = half_to_float(grid.minimum);
  const float inverse = 1.0F / half_to_float(grid.scale);
  for (uint32_t i = 0; i < n; ++i) {
    q[i] =
        static_cast<uint8_t>(std::clamp(std::nearbyint((x[i] - minimum) * inverse), 0.0F, 15.0F));
  }
  return grid;
}

void encode_int8_row(uint32_t head_dim, uint32_t token, const float* row, std::byte* section) {
  float amplitude = 0;
  for (uint32_t c = 0; c < head_dim; ++c) amplitude = std::max(amplitude, std::fabs(clean(row[c])));
  auto* q = section + size_t{token} * head_dim;
  std::byte* scales = section + size_t{kBlockTokens} * head_dim;
  if (amplitude < kMinAmplitude) {
    std::memset(q, 0, head_dim);
    store_half(scales, token, 0);
    return;
  }
  uint16_t h = float_to_half(amplitude * (1.0F / 127.0F));
  if (half_to_float(h) * 127.0F < amplitude) ++h;  // positive halves are ordered like their bits
  const float inverse = 1.0F / half_to_float(h);
  for (uint32_t c = 0; c < head_dim; ++c) {
    const float level = std::clamp(std::nearbyint(clean(row[c]) * inverse), -127.0F, 127.0F);
    q[c] = static_cast<std::byte>(static_cast<int8_t>(level));
  }
  store_half(scales, token, h);
}

void encode_e4m3_row(uint32_t head_dim, uint32_t token, const float* row, std::byte* section) {
  float amplitude = 0;
  for (uint32_t c = 0; c < head_dim; ++c) amplitude = std::max(amplitude, std::fabs(clean(row[c])));
  auto* elements = section + size_t{token} * head_dim;
  std::byte* scales = section + size_t{kBlockTokens} * head_dim;
  if (amplitude < kMinAmplitude) {
    std::memset(elements, 0, head_dim);
    store_half(scales, token, 0);
    return;
  }
  uint16_t h = float_to_half(amplitude * (1.0F / kMaxE4m3));
  if (half_to_float(h) * kMaxE4m3 < amplitude) ++h;
  const float inverse = 1.0F / half_to_float(h);
  for (uint32_t c = 0; c < head_dim; ++c) {
    elements[c] = static_cast<std::byte>(float_to_e4m3(clean(row[c]) * inverse));
  }
  store_half(scales, token, h);
}

void encode_v4_row(uint32_t head_dim, uint32_t token, const float* row, std::byte* section) {
  const uint32_t groups = v4_groups(head_dim);
  std::byte* nibbles = section + size_t{token} * (head_dim / 2);
  std::byte* scales = section + size_t{kBlockTokens} * (head_dim / 2);
  std::byte* minima = scales + size_t{kBlockTokens} * groups * sizeof(uint16_t);
  for (uint32_t g = 0; g < groups; ++g) {
    const uint32_t first = g * kV4Group;
    const uint32_t n = std::min(kV4Group, head_dim - first);
    std::array<float, kV4Group> x{};
    std::array<uint8_t, kV4Group> q{};
    for (uint32_t i = 0; i < n; ++i) x[i] = clean(row[first + i]);
    const Grid grid = fit_group(x.data(), n, q.data());
    for (uint32_t i = 0; i < n; i += 2) {
      nibbles[(first + i) / 2] = static_cast<std::byte>(q[i] | (q[i + 1] << 4));
    }
    store_half(scales, size_t{token} * groups + g, grid.scale);
    store_half(minima, size_t{token} * groups + g, grid.minimum);
  }
}

void encode_k4_page(uint32_t head_dim, const float* rows, size_t stride, std::byte* section) {
  std::byte* scales = section + size_t{kBlockTokens} * (head_dim / 2);
  std::byte* minima = scales + head_dim * sizeof(uint16_t);
  std::memset(section, 0, size_t{kBlockTokens} * (head_dim / 2));
  for (uint32_t c = 0; c < head_dim; ++c) {
    std::array<float, kBlockTokens> x{};
    std::array<uint8_t, kBlockTokens> q{};
    for (uint32_t t = 0; t < kBlockTokens; ++t) x[t] = clean(rows[t * stride + c]);
    const Grid grid = fit_group(x.data(), kBlockTokens, q.data());
    for (uint32_t t = 0; t < kBlockTokens; ++t) {
      section[t * (head_dim / 2) + c / 2] |= static_cast<std::byte>(q[t] << (c % 2 == 0 ? 0 : 4));
    }
    store_half(scales, c, grid.scale);
    store_half(minima, c, grid.minimum);
  }
}

float dequantize(std::byte packed, uint32_t channel, uint16_t scale, uint16_t minimum) {
  const auto byte = static_cast<uint32_t>(packed);
  const uint32_t level = channel % 2 == 0 ? byte & 0xfU : byte >> 4;
  return static_cast<float>(level) * half_to_float(scale) + half_to_float(minimum);
}

}  // namespace

uint8_t float_to_e4m3(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80U);
  const float magnitude = std::fabs(f);
  if (std::isnan(f)) return 0x7f;
  // Steps of the subnormals and of the first binade are both 2^-9.
  if (magnitude < 0x1p-6F) return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9F));
  if (magnitude >= kMaxE4m3) return sign | 0x7e;
  const uint32_t u = bits & 0x7fffffffU;
  const uint32_t rounded = (u + 0x7ffffU + (u >> 20 & 1U)) >> 20;  // three bits of mantissa stay
  const uint32_t code = rounded - ((127 - 7) << 3);
  return sign | static_cast<uint8_t>(std::min(code, 0x7eU));
}

float e4m3_to_float(uint8_t bits) {
  const float sign = (bits & 0x80U) != 0 ? -1.0F : 1.0F;
  const uint32_t code = bits & 0x7fU;
  if (code == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (code < 8) return sign * static_cast<float>(code) * 0x1p-9F;
  return sign * std::bit_cast<float>((code + ((127 - 7) << 3)) << 20);
}

bool row_coded(const KvLayout& layout, KvSide side) {
  return coding(layout, side) != Coding::kFourBitChannels;
}

size_t row_bytes(const KvLayout& layout, KvSide side) {
  switch (coding(layout, side)) {
    case Coding::kF32:
      return size_t{layout.head_dim} * 4;
    case Coding::kBf16:
      return size_t{layout.head_dim} * 2;
    case Coding::kInt8:
    case Coding::kE4m3:
      return layout.head_dim;
    case Coding::kFourBitRows:
    case Coding::kFourBitChannels:
      return layout.head_dim / 2;
  }
  TANDEM_CHECK(false, "KV coding outside its enumeration");
  return 0;
}

size_t scale_offset(const KvLayout& layout, KvSide side) {
  switch (coding(layout, side)) {
    case Coding::kF32:
    case Coding::kBf16:
      return 0;
    case Coding::kInt8:
    case Coding::kE4m3:
    case Coding::kFourBitRows:
    case Coding::kFourBitChannels:
      return kBlockTokens * row_bytes(layout, side);
  }
  TANDEM_CHECK(false, "KV coding outside its enumeration");
  return 0;
}

void encode_row(const KvLayout& layout, KvSide side, uint32_t token, const float* row,
                std::byte* section) {
  TANDEM_CHECK(token < kBlockTokens, "token outside its page");
  const uint32_t head_dim = layout.head_dim;
  switch (coding(layout, side)) {
    case Coding::kF32:
      std::memcpy(section + size_t{token} * head_dim * 4, row, size_t{head_dim} * 4);
      return;
    case Coding::kBf16:
      for (uint32_t c = 0; c < head_dim; ++c) {
        store_half(section, size_t{token} * head_dim + c, to_bf16(row[c]).bits);
      }
      return;
    case Coding::kInt8:
      encode_int8_row(head_dim, token, row, section);
      return;
    case Coding::kE4m3:
      encode_e4m3_row(head_dim, token, row, section);
      return;
    case Coding::kFourBitRows:
      encode_v4_row(head_dim, token, row, section);
      return;
    case Coding::kFourBitChannels:
      TANDEM_CHECK(false, "keys of int4 are encoded a page at a time");
      return;
  }
}

void encode_section(const KvLayout& layout, KvSide side, const float* rows, size_t stride,
                    std::byte* section) {
  if (coding(layout, side) == Coding::kFourBitChannels) {
    encode_k4_page(layout.head_dim, rows, stride, section);
    const size_t used = size_t{kBlockTokens} * (layout.head_dim / 2) + 4 * size_t{layout.head_dim};
    std::memset(section + used, 0, layout.k_section_bytes() - used);
    return;
  }
  // Row-coded sections are multiples of 16 rows, so they have no padding.
  for (uint32_t t = 0; t < kBlockTokens; ++t) {
    encode_row(layout, side, t, rows + t * stride, section);
  }
}

void decode_row(const KvLayout& layout, KvSide side, const std::byte* section, uint32_t token,
                float* out) {
  TANDEM_CHECK(token < kBlockTokens, "token outside its page");
  const uint32_t head_dim = layout.head_dim;
  const std::byte* row = section + token * row_bytes(layout, side);
  const std::byte* scales = section + scale_offset(layout, side);
  switch (coding(layout, side)) {
    case Coding::kF32:
      std::memcpy(out, row, size_t{head_dim} * 4);
      return;
    case Coding::kBf16:
      for (uint32_t c = 0; c < head_dim; ++c) out[c] = to_float(Bf16{load_half(row, c)});
      return;
    case Coding::kInt8: {
      const float scale = half_to_float(load_half(scales, token));
      for (uint32_t c = 0; c < head_dim; ++c) {
        out[c] = static_cast<float>(static_cast<int8_t>(row[c])) * scale;
      }
      return;
    }
    case Coding::kE4m3: {
      const float scale = half_to_float(load_half(scales, token));
      for (uint32_t c = 0; c < head_dim; ++c) {
        out[c] = e4m3_to_float(static_cast<uint8_t>(row[c])) * scale;
      }
      return;
    }
    case Coding::kFourBitRows: {
      const uint32_t groups = v4_groups(head_dim);
      const std::byte* minima = scales + size_t{kBlockTokens} * groups * sizeof(uint16_t);
      for (uint32_t c = 0; c < head_dim; ++c) {
        const size_t g = size_t{token} * groups + c / kV4Group;
        out[c] = dequantize(row[c / 2], c, load_half(scales, g), load_half(minima, g));
      }
      return;
    }
    case Coding::kFourBitChannels: {
      const std::byte* minima = scales + head_dim * sizeof(uint16_t);
      for (uint32_t c = 0; c < head_dim; ++c) {
        out[c] = dequantize(row[c / 2], c, load_half(scales, c), load_half(minima, c));
      }
      return;
    }
  }
}

void seal_tail(const KvLayout& layout, const std::byte* tail_page, std::byte* page) {
  TANDEM_CHECK(layout.needs_tail(), "only formats with an open page have a tail to seal");
  const KvLayout tail = layout.tail_layout();
  std::vector<float> rows(size_t{kBlockTokens} * layout.head_dim);
  for (uint32_t head = 0; head < layout.kv_heads; ++head) {
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      const std::byte* from = tail_page + section_offset(tail, head, side);
      for (uint32_t t = 0; t < kBlockTokens; ++t) {
        decode_row(tail, side, from, t, rows.data() + size_t{t} * layout.head_dim);
      }
      encode_section(layout, side, rows.data(), layout.head_dim,
                     page + section_offset(layout, head, side));
    }
  }
}

}  // namespace tandem::kv
