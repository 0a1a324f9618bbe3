#include "common/engine/rope.h"

#include <gtest/gtest.h>
#include <cmath>

namespace tandem::engine {
namespace {

using model::RopeConfig;
using model::RopeType;

void expect_near(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(static_cast<double>(got[i]) / want[i], 1.0, 2e-6) << i;
}

// Expected numbers: transformers 5.17.0, ROPE_INIT_FUNCTIONS with head_dim 16.
TEST(Rope, Default) {
  expect_near(rope_frequencies({}, 16, 64).inverse,
              {1.0, 0.316227764, 0.0999999940, 0.0316227749, 0.00999999978, 0.00316227786,
               0.00100000005, 0.000316227757});
}

TEST(Rope, LinearDividesAll) {
  RopeConfig rope;
  rope.type = RopeType::kLinear;
  rope.factor = 4;
  const auto plain = rope_frequencies({}, 16, 64).inverse;
  const auto scaled = rope_frequencies(rope, 16, 64).inverse;
  for (size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, DynamicEqualsTheDefaultWithinTheOriginalLength) {
  RopeConfig rope;
  rope.type = RopeType::kDynamic;
  rope.factor = 4;
  rope.original_max_positions = 64;
  EXPECT_EQ(rope_frequencies(rope, 16, 64).inverse, rope_frequencies({}, 16, 64).inverse);
}

TEST(Rope, Llama3) {
  RopeConfig rope;
  rope.type = RopeType::kLlama3;
  rope.theta = 500000;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_positions = 64;
  expect_near(rope_frequencies(rope, 16, 64).inverse,
              {1, 0.079403013, 0.00470075384, 0.000911583134, 0.000176776681, 3.42810235e-05,
               6.64786967e-06, 1.28917316e-06});
}

TEST(Rope, Yarn) {
  RopeConfig rope;
  rope.type = RopeType::kYarn;
  rope.factor = 4;
  rope.original_max_positions = 64;
  const auto f = rope_frequencies(rope, 16, 256);
  expect_near(f.inverse, {1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466,
                          0.000250000012, 7.90569466e-05});
  EXPECT_NEAR(f.scale, 1.138629436111989, 1e-6);
  rope.mscale = 1.2;
  rope.mscale_all_dim = 0.7;
  rope.truncate = false;
  rope.beta_fast = 24;
  rope.beta_slow = 2;
  const auto g = rope_frequencies(rope, 16, 256);
  expect_near(g.inverse, {1, 0.14849025, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
                          0.000250000012, 7.90569466e-05});
  EXPECT_NEAR(g.scale, 1.0631833659779666, 1e-6);
  rope.attention_factor = 1.3;
  EXPECT_FLOAT_EQ(rope_frequencies(rope, 16, 256).scale, 1.3F);
}

TEST(Rope, DivisorsApplyLast) {
  RopeConfig rope;
  rope.frequency_divisors = {1, 2, 4, 8, 1, 1, 1, 1};
  const auto plain = rope_frequencies({}, 16, 64).inverse;
  const auto f = rope_frequencies(rope, 16, 64).inverse;
  for (size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(f[i], plain[i] / rope.frequency_divisors[i]);
}

TEST(RopeCache, GrowsWithinTheContextAndKeepsItsValues) {
  RopeCache cache(rope_frequencies({}, 8, 20000), 20000);
  const RopeTable small = cache.table(3);
  EXPECT_EQ(small.rotary_dim, 8u);
  EXPECT_GE(small.max_positions, 3u);
  const float early = small.sin[2 * 4 + 1];
  EXPECT_NEAR(static_cast<double>(early), std::sin(0.2), 1e-6);
  const RopeTable large = cache.table(20000);
  EXPECT_EQ(large.max_positions, 20000u);
  EXPECT_EQ(large.sin[2 * 4 + 1], early);
  EXPECT_NEAR(static_cast<double>(large.cos[19999 * 4]), std::cos(19999.0), 1e-6);
}

}  // namespace
}  // namespace tandem::engine
