#include "common/kv/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/dtype.h"

namespace tandem::kv {
namespace {

constexpr uint32_t kSpecials[] = {0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000,
                                  0,          0x7F7FFFFF, 0x477FE000, 0xC77FE000,
                                  0x33800000, 0x337FFFFF, 0x00000001, 0x80000001};

// Bit for bit what `inputs` of tests/data/kv/make_codec_golden.py draws.
std::vector<float> inputs(uint32_t head_dim, uint32_t pattern) {
  std::vector<float> out;
  uint64_t state = 0x9E3779B97F4A7C15ull + head_dim * 16 + pattern;
  for (uint32_t i = 0; i < kBlockTokens * head_dim; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    uint32_t mantissa = static_cast<uint32_t>(state >> 41) & 0x7FFFFFu;
    uint32_t sign = static_cast<uint32_t>(state >> 40) & 1u;
    uint32_t exponent = 120 + static_cast<uint32_t>((state >> 32) % 11);
    if (pattern == 1) {
      sign = 0;
      exponent = 130;
      mantissa >>= 3;
    }
    uint32_t bits = sign << 31 | exponent << 23 | mantissa;
    if (pattern == 2 && i % 7 == 3) bits = kSpecials[(state >> 20) % std::size(kSpecials)];
    if (pattern == 2 && (i / head_dim) % 5 == 4) bits = 0;
    out.push_back(std::bit_cast<float>(bits));
  }
  return out;
}

std::string hex(const std::vector<std::byte>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<uint32_t>(b) >> 4];
    text += kDigits[static_cast<uint32_t>(b) & 15u];
  }
  return text;
}

size_t section_bytes(const KvLayout& layout, KvSide side) {
  return side == KvSide::kK ? layout.k_section_bytes() : layout.v_section_bytes();
}

std::vector<std::byte> encoded(const KvLayout& layout, KvSide side, const std::vector<float>& x) {
  std::vector<std::byte> section(section_bytes(layout, side), std::byte{0xEE});
  encode_section(layout, side, x.data(), layout.head_dim, section.data());
  return section;
}

TEST(KvCodec, EveryFormatMatchesTheIndependentReferenceByteForByte) {
  std::ifstream file(TANDEM_TEST_DATA "/kv/codec_golden.txt");
  ASSERT_TRUE(file) << "missing codec_golden.txt";
  std::string format;
  std::string side;
  std::string expected;
  uint32_t head_dim = 0;
  uint32_t pattern = 0;
  int cases = 0;
  while (file >> format >> side >> head_dim >> pattern >> expected) {
    SCOPED_TRACE(format + " " + side + " " + std::to_string(head_dim) + " pattern " +
                 std::to_string(pattern));
    const KvLayout layout{1, 1, head_dim, parse_kv_format(format).value()};
    const KvSide s = side == "k" ? KvSide::kK : KvSide::kV;
    EXPECT_EQ(hex(encoded(layout, s, inputs(head_dim, pattern))), expected);
    ++cases;
  }
  EXPECT_EQ(cases, 10 * 3 * 3);
}

class KvCodecFormats : public ::testing::TestWithParam<KvFormat> {};

TEST_P(KvCodecFormats, RowsEncodedAloneEqualTheWholeSection) {
  for (const uint32_t head_dim : {6u, 64u, 80u}) {
    const KvLayout layout{1, 1, head_dim, GetParam()};
    const auto x = inputs(head_dim, 0);
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      if (!row_coded(layout, side)) continue;
      std::vector<std::byte> section(section_bytes(layout, side), std::byte{0xEE});
      for (uint32_t t = kBlockTokens; t-- > 0;) {
        encode_row(layout, side, t, x.data() + t * head_dim, section.data());
      }
      EXPECT_EQ(section, encoded(layout, side, x));
    }
  }
}

// Largest error a format may make, from its step: half a step of the row's or group's own scale,
// plus what rounding scale and minimum to half precision adds.
TEST_P(KvCodecFormats, DecodedValuesStayWithinTheFormatsStep) {
  const uint32_t head_dim = 64;
  const KvLayout layout{1, 1, head_dim, GetParam()};
  const auto x = inputs(head_dim, 0);
  for (const KvSide side : {KvSide::kK, KvSide::kV}) {
    const auto section = encoded(layout, side, x);
    double error = 0;
    double power = 0;
    std::vector<float> row(head_dim);
    for (uint32_t t = 0; t < kBlockTokens; ++t) {
      decode_row(layout, side, section.data(), t, row.data());
      for (uint32_t c = 0; c < head_dim; ++c) {
        const double v = x[t * head_dim + c];
        error += (row[c] - v) * (row[c] - v);
        power += v * v;
      }
    }
    const double relative = std::sqrt(error / power);
    switch (GetParam()) {
      case KvFormat::kF32:
        EXPECT_EQ(relative, 0);
        break;
      case KvFormat::kBf16:
        EXPECT_LT(relative, 0x1p-8);
        break;
      case KvFormat::kInt8:
        EXPECT_LT(relative, 0.02);
        break;
      case KvFormat::kFp8E4M3:
        EXPECT_LT(relative, 0.03);
        break;
      case KvFormat::kK8V4:
      case KvFormat::kInt4:
        EXPECT_LT(relative, row_coded(layout, side) ? 0.16 : 0.14);
        break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvCodecFormats,
                         ::testing::Values(KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8,
                                           KvFormat::kK8V4, KvFormat::kInt4, KvFormat::kFp8E4M3),
                         [](const auto& param_info) {
                           return std::string(to_string(param_info.param));
                         });

// The claim of codec.h about the fitted grid, on normal values, against plain min/max.
TEST(KvCodec, FittedFourBitGridBeatsMinMax) {
  const KvLayout layout{1, 1, 32, KvFormat::kK8V4};
  double fitted = 0;
  double plain = 0;
  uint64_t state = 1;
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<float> x(kBlockTokens * 32);
    for (float& v : x) {  // sum of 12 uniforms: near enough normal
      double sum = -6;
      for (int i = 0; i < 12; ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        sum += static_cast<double>(state >> 40) * 0x1p-24;
      }
      v = static_cast<float>(sum);
    }
    const auto section = encoded(layout, KvSide::kV, x);
    std::vector<float> row(32);
    for (uint32_t t = 0; t < kBlockTokens; ++t) {
      decode_row(layout, KvSide::kV, section.data(), t, row.data());
      const auto [lo, hi] = std::minmax_element(x.begin() + t * 32, x.begin() + t * 32 + 32);
      const double step = (*hi - *lo) / 15.0;
      for (uint32_t c = 0; c < 32; ++c) {
        const double v = x[t * 32 + c];
        const double m = *lo + std::round((v - *lo) / step) * step;
        fitted += (row[c] - v) * (row[c] - v);
        plain += (m - v) * (m - v);
      }
    }
  }
  EXPECT_LT(fitted, 0.88 * plain);
}

TEST(KvCodec, DecodedValuesAreFiniteForAnyFiniteOrInfiniteInput) {
  for (const KvFormat format :
       {KvFormat::kInt8, KvFormat::kK8V4, KvFormat::kInt4, KvFormat::kFp8E4M3}) {
    const KvLayout layout{1, 1, 64, format};
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      const auto section = encoded(layout, side, inputs(64, 2));
      std::vector<float> row(64);
      for (uint32_t t = 0; t < kBlockTokens; ++t) {
        decode_row(layout, side, section.data(), t, row.data());
        for (const float v : row) EXPECT_TRUE(std::isfinite(v));
      }
    }
  }
}

TEST(KvCodec, ASealedTailEqualsEncodingRowsRoundedToBf16) {
  const KvLayout layout{1, 2, 64, KvFormat::kInt4};
  const KvLayout tail_layout = layout.tail_layout();
  std::vector<std::byte> tail(tail_layout.page_bytes());
  std::vector<std::byte> expected(layout.page_bytes());
  for (uint32_t head = 0; head < 2; ++head) {
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      auto x = inputs(64, head);
      encode_section(tail_layout, side, x.data(), 64,
                     tail.data() + section_offset(tail_layout, head, side));
      for (float& v : x) v = to_float(to_bf16(v));
      encode_section(layout, side, x.data(), 64,
                     expected.data() + section_offset(layout, head, side));
    }
  }
  std::vector<std::byte> page(layout.page_bytes(), std::byte{0x11});
  seal_tail(layout, tail.data(), page.data());
  EXPECT_EQ(page, expected);
}

}  // namespace
}  // namespace tandem::kv
