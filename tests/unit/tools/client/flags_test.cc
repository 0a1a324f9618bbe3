#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tools/number_flag.h"
#include "tools/number_text.h"

namespace tandem {
namespace {

TEST(WholeFlag, TakesDigitsWithinTheBoundsOnly) {
  const CLI::Validator from_one = whole(1, 20);
  for (std::string text : {"1", "20"}) EXPECT_EQ(from_one(text), "") << text;
  for (std::string text : {"0", "21", "007", "-1", "+1", "1.5", "1e1", "0x2", "", " 1", "nan"})
    EXPECT_NE(from_one(text), "") << text;
  std::string largest = "18446744073709551615";
  EXPECT_EQ(whole(0)(largest), "");
  std::string more = "18446744073709551616";
  EXPECT_NE(whole(0)(more), "");
}

TEST(WholeFlag, KeepsCliFromReadingOtherNumbers) {
  CLI::App app;
  uint64_t value = 0;
  app.add_option("--n", value)->check(whole(0));
  app.parse("--n 10");
  EXPECT_EQ(value, 10u);
  EXPECT_THROW(app.parse("--n=-1"), CLI::ParseError);   // would be 2^64 - 1
  EXPECT_THROW(app.parse("--n=010"), CLI::ParseError);  // would be 8
}

TEST(ThreeFigures, WhateverTheSize) {
  EXPECT_EQ(three_figures(0.0123456), "0.0123");
  EXPECT_EQ(three_figures(0.5), "0.500");
  EXPECT_EQ(three_figures(1.2345), "1.23");
  EXPECT_EQ(three_figures(9.996), "10.0");
  EXPECT_EQ(three_figures(12.345), "12.3");
  EXPECT_EQ(three_figures(99.96), "100");
  EXPECT_EQ(three_figures(123.4), "123");
  EXPECT_EQ(three_figures(4280), "4280");
  EXPECT_EQ(three_figures(-1.5), "-1.50");
  EXPECT_EQ(three_figures(0), "0");
  EXPECT_EQ(three_figures(std::numeric_limits<double>::quiet_NaN()), "-");
}

}  // namespace
}  // namespace tandem
