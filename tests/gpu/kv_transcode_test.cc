#include "kernels/cuda/kv_transcode.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/kv_scene.h"

namespace tandem::cuda {
namespace {

using kv::KvFormat;
using kv::KvLayout;
using kv::KvSide;

constexpr uint32_t kPages = 7;

std::vector<float> rows(uint32_t n, bool odd) {
  std::mt19937 random(n + odd);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  static constexpr float kOdd[] = {0.0F,
                                   -0.0F,
                                   1e-30F,
                                   65504,
                                   -70000,
                                   1e30F,
                                   0x1p-24F,
                                   std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> x(n);
  for (float& v : x)
    v = odd && random() % 9 == 0 ? kOdd[random() % std::size(kOdd)] : normal(random);
  for (uint32_t i = 0; i < n / 16; ++i) x[i] = 0.37F;  // a constant run, and one of zeros
  for (uint32_t i = n / 16; i < n / 8; ++i) x[i] = 0.0F;
  return x;
}

// Pages of `layout` from floats, by the codec.
std::vector<std::byte> encoded(const KvLayout& layout, const std::vector<float>& x) {
  std::vector<std::byte> out(kPages * layout.page_bytes(), std::byte{0xff});
  const size_t section = size_t{16} * layout.head_dim;
  size_t at = 0;
  for (uint32_t p = 0; p < kPages; ++p)
    for (uint32_t h = 0; h < layout.kv_heads; ++h)
      for (const KvSide side : {KvSide::kK, KvSide::kV}) {
        kv::encode_section(
            layout, side, x.data() + at, layout.head_dim,
            out.data() + p * layout.page_bytes() + kv::section_offset(layout, h, side));
        at += section;
      }
  return out;
}

std::vector<float> decoded(const KvLayout& layout, const std::vector<std::byte>& pages) {
  std::vector<float> x(size_t{kPages} * layout.kv_heads * 2 * 16 * layout.head_dim);
  float* to = x.data();
  for (uint32_t p = 0; p < kPages; ++p)
    for (uint32_t h = 0; h < layout.kv_heads; ++h)
      for (const KvSide side : {KvSide::kK, KvSide::kV})
        for (uint32_t t = 0; t < 16; ++t, to += layout.head_dim)
          kv::decode_row(
              layout, side,
              pages.data() + p * layout.page_bytes() + kv::section_offset(layout, h, side), t, to);
  return x;
}

class KvTranscodeTest : public CardTest {};

TEST_F(KvTranscodeTest, BytesAreThoseOfTheCodec) {
  for (const KvFormat format : kAllFormats)
    for (const bool encode : {true, false})
      for (const bool odd : {false, true})
        for (const uint32_t head_dim : {6U, 64U, 80U, 128U, 256U}) {
          SCOPED_TRACE(std::string(to_string(format)) + (encode ? " from" : " to") +
                       " bf16, head_dim " + std::to_string(head_dim) + (odd ? ", odd" : ""));
          const KvLayout plain{1, 3, head_dim, KvFormat::kBf16};
          const KvLayout other{1, 3, head_dim, format};
          const KvLayout& from = encode ? plain : other;
          const KvLayout& to = encode ? other : plain;
          const auto source = encoded(from, rows(kPages * 3 * 2 * 16 * head_dim, odd && encode));
          const auto want = encoded(to, decoded(from, source));
          const DeviceArray<std::byte> in(source);
          const DeviceArray<std::byte> out(std::vector<std::byte>(want.size(), std::byte{0xff}));
          KvTranscode task;
          task.count = kPages;
          for (uint32_t p = 0; p < kPages; ++p)
            task.pages[p] = {in.data() + p * from.page_bytes(), out.data() + p * to.page_bytes()};
          ASSERT_CUDA(kv_transcode(from, to, task, 8, nullptr));
          ASSERT_CUDA(cudaDeviceSynchronize());
          const auto got = out.host();
          const auto at = std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
          EXPECT_EQ(static_cast<size_t>(at), want.size());
        }
}

TEST_F(KvTranscodeTest, RefusesLayoutsThatDoNotFit) {
  const KvTranscode task;
  EXPECT_EQ(
      kv_transcode({1, 2, 64, KvFormat::kInt8}, {1, 2, 64, KvFormat::kInt4}, task, 8, nullptr),
      cudaErrorInvalidValue);
  EXPECT_EQ(
      kv_transcode({1, 2, 64, KvFormat::kBf16}, {1, 2, 128, KvFormat::kInt8}, task, 8, nullptr),
      cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tandem::cuda
