#include "common/model/host_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/dtype.h"
#include "tests/unit/model/test_files.h"

namespace tandem::model {
namespace {

using ::testing::ElementsAre;
using testing::put;

HostTensor view(StorageType type, std::vector<int64_t> shape, const std::string& bytes) {
  HostTensor t;
  t.type = type;
  t.shape = std::move(shape);
  t.bytes = std::as_bytes(std::span(bytes));
  return t;
}

std::vector<float> row(const HostTensor& t, int64_t r) {
  std::vector<float> out(static_cast<size_t>(t.shape.back()));
  read_row(t, r, out);
  return out;
}

// Every half there is, against the scalar conversion of common/base.
TEST(HostTensor, EveryHalfConverts) {
  std::string bytes;
  for (uint32_t i = 0; i < 65536; ++i) put<uint16_t>(bytes, static_cast<uint16_t>(i));
  const auto got = row(view(StorageType::kF16, {65536}, bytes), 0);
  for (uint32_t i = 0; i < 65536; ++i) {
    const float want = half_to_float(static_cast<uint16_t>(i));
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(got[i])) << i;
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want)) << i;
  }
}

// Blocks worked out by hand: d = 0.5 (0x3800), m = -1 (0xbc00).
TEST(HostTensor, PackedBlocksByHand) {
  std::string q8;
  put<uint16_t>(q8, 0x3800);
  for (int i = 0; i < 32; ++i) put<int8_t>(q8, static_cast<int8_t>(i - 16));
  const auto a = row(view(StorageType::kQ8_0, {32}, q8), 0);
  EXPECT_EQ(a[0], -8);
  EXPECT_EQ(a[31], 7.5F);

  std::string q4;
  put<uint16_t>(q4, 0x3800);
  for (int i = 0; i < 16; ++i) put<uint8_t>(q4, static_cast<uint8_t>(i | ((15 - i) << 4)));
  const auto b = row(view(StorageType::kQ4_0, {32}, q4), 0);
  EXPECT_EQ(b[0], -4);     // (0 - 8) / 2
  EXPECT_EQ(b[15], 3.5F);  // low nibbles are values 0 .. 15
  EXPECT_EQ(b[16], 3.5F);  // high nibbles 16 .. 31
  EXPECT_EQ(b[31], -4);

  std::string q41 = q4;
  q41.insert(2, std::string("\x00\xbc", 2));
  const auto c = row(view(StorageType::kQ4_1, {32}, q41), 0);
  EXPECT_EQ(c[0], -1);
  EXPECT_EQ(c[15], 6.5F);
  EXPECT_EQ(c[16], 6.5F);
  EXPECT_EQ(c[31], -1);
}

TEST(HostTensor, StorageBytes) {
  EXPECT_EQ(storage_bytes(StorageType::kF32, 64), 256u);
  EXPECT_EQ(storage_bytes(StorageType::kBf16, 64), 128u);
  EXPECT_EQ(storage_bytes(StorageType::kQ8_0, 64), 68u);
  EXPECT_EQ(storage_bytes(StorageType::kQ4_0, 64), 36u);
  EXPECT_EQ(storage_bytes(StorageType::kQ4_1, 64), 40u);
}

// The converter's permutation for 2 heads of 4: stored (h, 2i+j) is logical (h, i + 2j).
TEST(HostTensor, InterleavedRowsComeBackInOrder) {
  std::string bytes;
  for (const int logical : {0, 2, 1, 3, 4, 6, 5, 7}) put<float>(bytes, static_cast<float>(logical));
  HostTensor matrix = view(StorageType::kF32, {8, 1}, bytes);
  matrix.interleaved_heads = 2;
  for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(row(matrix, r)[0], static_cast<float>(r));
  HostTensor vector = view(StorageType::kF32, {8}, bytes);  // a bias
  vector.interleaved_heads = 2;
  EXPECT_THAT(row(vector, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace tandem::model
