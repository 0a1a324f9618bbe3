#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <vector>

#include "common/engine/cuda/fp8_row.h"
#include "common/kv/codec.h"
#include "tests/support/test_data.h"

namespace tandem::engine {
namespace {

// rows.json comes from numpy and ml_dtypes (make_rows.py beside it).
TEST(Fp8Row, IsWhatTheReferenceMakesOfIt) {
  std::ifstream file(test_data("fp8/rows.json"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto rows = boost::json::parse(text).at("rows").as_array();
  ASSERT_EQ(rows.size(), 7U);
  for (const auto& row : rows) {
    std::vector<float> x;
    for (const auto& v : row.at("x").as_array()) x.push_back(v.to_number<float>());
    std::vector<uint8_t> bits(x.size());
    const float scale = quantize_fp8_row(x, bits.data());
    EXPECT_EQ(scale, row.at("scale").to_number<float>());
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(bits[i], row.at("bits").as_array()[i].to_number<uint8_t>()) << i << ": " << x[i];
  }
}

TEST(Fp8Row, ErrsByAtMostASixteenthOfEachElement) {
  std::vector<float> x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 100.5F;
  std::vector<uint8_t> bits(x.size());
  const float scale = quantize_fp8_row(x, bits.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const float back = kv::e4m3_to_float(bits[i]) * scale;
    EXPECT_NEAR(back, x[i], std::abs(x[i]) / 16 + scale / 512) << i;
  }
}

TEST(Fp8Check, RefusesWhatHasNoSuchProducts) {
  cuda::DeviceInfo card;
  card.index = 2;
  card.name = "Card";
  card.major = 9;
  EXPECT_TRUE(check_fp8(card, 120900));
  EXPECT_TRUE(check_fp8(card, 130100));
  const Status old = check_fp8(card, 120602);
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(old.error().detail.find("the one found is 12.6"), std::string::npos)
      << old.error().detail;
  card.major = 8;
  const Status wrong = check_fp8(card, 130100);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().param, "quantization");
  for (const char* part : {"device 2 (Card)", "8.0", "Hopper", "quantization none"})
    EXPECT_NE(wrong.error().detail.find(part), std::string::npos) << wrong.error().detail;
}

TEST(Fp8Check, NamesASizeThatDoesNotFit) {
  EXPECT_TRUE(check_fp8_shape(3584, 18944));
  const Status odd = check_fp8_shape(3584, 1000);
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().detail.find("3584 inputs and 1000 outputs"), std::string::npos);
  EXPECT_TRUE(check_fp8_shape(51200, 3584));
  const Status longer = check_fp8_shape(51216, 3584);
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().detail.find("at most 51200 inputs"), std::string::npos);
}

TEST(Fp8Check, RefusesAModelBeforeItIsRead) {
  model::ModelConfig m;
  m.hidden = 3584;
  m.heads = 28;
  m.kv_heads = 4;
  m.head_dim = 128;
  m.intermediate = 18944;
  EXPECT_TRUE(check_fp8_model(m));
  m.intermediate = 1000;
  const Status odd = check_fp8_model(m);
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().detail.find("1000 inputs and 3584 outputs"), std::string::npos);
  m.intermediate = 18944;
  m.moe.experts = 8;
  const Status mixture = check_fp8_model(m);
  ASSERT_FALSE(mixture);
  EXPECT_NE(mixture.error().detail.find("mixture of experts"), std::string::npos);
}

}  // namespace
}  // namespace tandem::engine
