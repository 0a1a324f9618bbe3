#include "common/kv/transcode.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/base/dtype.h"
#include "common/kv/codec.h"

namespace tandem::kv {
namespace {

constexpr uint32_t kHeads = 2;
constexpr uint32_t kDim = 40;  // not a multiple of the four-bit group

KvLayout layout(KvFormat format) {
  return {.layers = 1, .kv_heads = kHeads, .head_dim = kDim, .format = format};
}

// [head][side][token][channel], values that bf16 holds exactly.
std::vector<float> random_rows() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(size_t{kHeads} * 2 * kBlockTokens * kDim);
  for (float& v : rows) v = to_float(to_bf16(normal(random)));
  return rows;
}
const float* section_rows(const std::vector<float>& rows, uint32_t head, KvSide side) {
  const size_t section = head * 2 + (side == KvSide::kV ? 1 : 0);
  return rows.data() + section * kBlockTokens * kDim;
}
std::vector<std::byte> encode(const KvLayout& l, const std::vector<float>& rows) {
  std::vector<std::byte> page(l.page_bytes());
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      encode_section(l, side, section_rows(rows, head, side), kDim,
                     page.data() + section_offset(l, head, side));
    }
  }
  return page;
}

TEST(Transcode, FromWhatHoldsTheValuesExactlyGivesThePageOfAnEncoder) {
  const auto rows = random_rows();
  for (const auto from : {KvFormat::kF32, KvFormat::kBf16}) {
    for (const auto to : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8, KvFormat::kK8V4,
                          KvFormat::kInt4, KvFormat::kFp8E4M3}) {
      SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)));
      std::vector<std::byte> page(layout(to).page_bytes(), std::byte{0x5a});
      transcode_page(layout(from), encode(layout(from), rows).data(), layout(to), page.data(),
                     kBlockTokens);
      EXPECT_EQ(page, encode(layout(to), rows));
    }
  }
}

TEST(Transcode, ToAFinerFormatKeepsWhatWasStored) {
  const auto rows = random_rows();
  const KvLayout f32 = layout(KvFormat::kF32);
  for (const auto from : {KvFormat::kInt8, KvFormat::kInt4, KvFormat::kFp8E4M3}) {
    SCOPED_TRACE(to_string(from));
    const auto stored = encode(layout(from), rows);
    std::vector<std::byte> page(f32.page_bytes());
    transcode_page(layout(from), stored.data(), f32, page.data(), kBlockTokens);
    double error = 0;
    double norm = 0;
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (const KvSide side : {KvSide::kK, KvSide::kV}) {
        const float* original = section_rows(rows, head, side);
        for (uint32_t t = 0; t < kBlockTokens; ++t) {
          std::vector<float> a(kDim), b(kDim);
          decode_row(layout(from), side, stored.data() + section_offset(layout(from), head, side),
                     t, a.data());
          decode_row(f32, side, page.data() + section_offset(f32, head, side), t, b.data());
          EXPECT_EQ(a, b);
          for (uint32_t c = 0; c < kDim; ++c) {
            const double d = double{b[c]} - double{original[t * kDim + c]};
            error += d * d;
            norm += double{original[t * kDim + c]} * double{original[t * kDim + c]};
          }
        }
      }
    }
    EXPECT_LT(error / norm, 0.02);  // four bits: about 1 % of the energy
  }
}

TEST(Transcode, APartOfAPageLeavesTheOtherRowsAlone) {
  const auto rows = random_rows();
  const KvLayout bf16 = layout(KvFormat::kBf16);
  const KvLayout int8 = layout(KvFormat::kInt8);
  const auto whole = encode(int8, rows);
  std::vector<std::byte> page(int8.page_bytes(), std::byte{0x5a});
  transcode_page(bf16, encode(bf16, rows).data(), int8, page.data(), 5);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (const KvSide side : {KvSide::kK, KvSide::kV}) {
      const size_t at = section_offset(int8, head, side);
      const size_t bytes = row_bytes(int8, side);
      EXPECT_TRUE(std::equal(page.begin() + at, page.begin() + at + 5 * bytes, whole.begin() + at));
      EXPECT_EQ(page[at + 5 * bytes], std::byte{0x5a});
      const size_t scales = at + scale_offset(int8, side);
      EXPECT_TRUE(
          std::equal(page.begin() + scales, page.begin() + scales + 10, whole.begin() + scales));
      EXPECT_EQ(page[scales + 10], std::byte{0x5a});
    }
  }
}

}  // namespace
}  // namespace tandem::kv
