#include "tools/bench/device_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tools/bench/device_command.h"

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DeviceRow row() {
  DeviceRow r;
  r.what = "decode attention int4";
  r.shape = "32 x 8192";
  r.seconds = 123.4e-6;
  r.rate = 2568;
  r.unit = "GB/s";
  r.ceiling = 4280;
  r.against = "read stream";
  r.ratio = 0.6;
  r.target = 0.6;
  return r;
}

TEST(DeviceReport, SaysPassAtTheTargetAndShortBelowIt) {
  DeviceRow r = row();
  EXPECT_EQ(verdict(r), "pass");
  r.ratio = 0.599;
  EXPECT_EQ(verdict(r), "short");
  r.at_most = true;  // a bound on how much longer something may take
  EXPECT_EQ(verdict(r), "pass");
  r.ratio = 0.7;
  EXPECT_EQ(verdict(r), "short");
  r.target = 0;
  EXPECT_EQ(verdict(r), "");
}

TEST(DeviceReport, ALineNamesEverything) {
  const std::string line = device_table_line(row());
  for (const char* part : {"decode attention int4", "32 x 8192", "123.4 us", "2568 GB/s", "4280",
                           "read stream", "0.600", "0.60", "pass"})
    EXPECT_THAT(line, HasSubstr(part));
}

TEST(DeviceReport, SlowWaysKeepTheirFigures) {
  DeviceRow r = row();
  r.rate = 0.8765;
  r.ceiling = 2.345;
  const std::string line = device_table_line(r);
  EXPECT_THAT(line, HasSubstr(" 0.876 GB/s"));  // 0.8765 lies below its decimal spelling
  EXPECT_THAT(line, HasSubstr(" 2.35 read stream"));
}

TEST(TransferBench, MeasuresWhatCanMoveKvThere) {
  EXPECT_EQ(default_transports(-1, -1), std::vector<std::string>{"ucx"});
  EXPECT_EQ(default_transports(0, 1), std::vector<std::string>{"cuda_ipc"});
}

TEST(DeviceReport, WhatWasNotMeasuredIsLeftOutAndSaysWhy) {
  DeviceRow r = row();
  r.ceiling = 0;
  r.ratio = 0;
  r.target = 0;
  r.note = "cuDNN not measured: no torch";
  const std::string line = device_table_line(r);
  EXPECT_THAT(line, HasSubstr("not measured: no torch"));
  EXPECT_THAT(line, Not(HasSubstr("read stream")));
  EXPECT_THAT(line, Not(HasSubstr("0.00")));
  const auto json = boost::json::parse(device_json("NVIDIA H200", "13.0", {r, row()}));
  EXPECT_EQ(json.at("device").as_string(), "NVIDIA H200");
  const auto& rows = json.at("rows").as_array();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0].at("ratio").is_null());
  EXPECT_TRUE(rows[0].at("verdict").is_null());
  EXPECT_EQ(rows[0].at("note").as_string(), r.note.c_str());
  EXPECT_EQ(rows[1].at("verdict").as_string(), "pass");
  EXPECT_DOUBLE_EQ(rows[1].at("seconds").as_double(), 123.4e-6);
  EXPECT_EQ(rows[1].at("target_is").as_string(), "at least");
}

}  // namespace
}  // namespace tandem::bench
