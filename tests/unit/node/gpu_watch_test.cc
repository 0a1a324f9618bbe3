#include "common/node/gpu_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace tandem::node {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

cuda::CardHealth card() {
  cuda::CardHealth c;
  c.uuid = "GPU-1";
  c.temperature_celsius = 61;
  c.power_watts = 512.5;
  c.memory_used_bytes = 1000;
  c.pcie_lanes = c.pcie_lanes_max = 16;
  c.ecc_uncorrected = 5;
  c.nvlinks.resize(2);
  for (cuda::NvLink& link : c.nvlinks) {
    link.active = true;
    link.bytes_per_second = 25'000'000'000;
    link.replays = 100;
    link.recoveries = 1;
    link.crc_errors = 0;
  }
  return c;
}

class GpuWatchTest : public ::testing::Test {
 protected:
  GpuWatchTest() : sink_(Fd(open("/dev/null", O_WRONLY | O_CLOEXEC)), clock_) {}

  void read(const Result<cuda::CardHealth>& reading, Duration later = std::chrono::seconds(5)) {
    clock_.advance(later);
    next_ = reading;
    watch_.sample();
  }
  std::string text() const { return metrics_.exposition(); }

  ManualClock clock_;
  LogSink sink_;
  MetricsRegistry metrics_;
  Result<cuda::CardHealth> next_ = card();
  GpuWatch watch_{"3",
                  [this] { return next_; },
                  {.clock = clock_, .log = Logger(sink_, LogLevel::kError), .metrics = metrics_}};
};

TEST_F(GpuWatchTest, AReadingBecomesMetricsAndWhatIsNotToldHasNone) {
  read(card());
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_temperature_celsius{gpu=\"3\"} 61"));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_power_watts{gpu=\"3\"} 512.5"));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_nvlink_active_count{gpu=\"3\"} 2"));
  EXPECT_THAT(text(),
              HasSubstr("tandem_gpu_nvlink_bandwidth_bytes_per_second{gpu=\"3\"} 50000000000"));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_link_degraded_state{gpu=\"3\"} 0"));
  EXPECT_THAT(text(), Not(HasSubstr("tandem_gpu_sm_clock_hertz")));
}

TEST_F(GpuWatchTest, CountersCountFromTheFirstReading) {
  read(card());
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_nvlink_errors_total{gpu=\"3\",kind=\"replay\"} 0"));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_ecc_errors_total{gpu=\"3\",kind=\"uncorrected\"} 0"));
  cuda::CardHealth later = card();
  later.nvlinks[0].replays = 104;
  later.ecc_uncorrected = 6;
  read(later);
  read(later);
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_nvlink_errors_total{gpu=\"3\",kind=\"replay\"} 4"));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_ecc_errors_total{gpu=\"3\",kind=\"uncorrected\"} 1"));
}

TEST_F(GpuWatchTest, ADegradedLinkIsShownUntilItRecovers) {
  read(card());
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_link_degraded_state{gpu=\"3\"} 0"));
  cuda::CardHealth worse = card();
  worse.nvlinks[1].active = false;
  read(worse);
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_link_degraded_state{gpu=\"3\"} 1"));
  read(card());
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_link_degraded_state{gpu=\"3\"} 0"));
}

TEST(GpuWatchLog, ADegradedLinkSaysWhatToDo) {
  testing::TempFolder folder;
  const std::string path = (folder.path() / "log").string();
  ManualClock clock;
  MetricsRegistry metrics;
  cuda::CardHealth now = card();
  {
    LogSink sink(Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), clock);
    GpuWatch watch("3", [&] { return now; },
                   {.clock = clock, .log = Logger(sink, LogLevel::kInfo), .metrics = metrics});
    watch.sample();
    now.nvlinks[1].active = false;
    watch.sample();
    watch.sample();
  }
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 1U) << "once";
  EXPECT_THAT(lines[0], HasSubstr("1 of 2 NVLinks are up"));
  EXPECT_THAT(lines[0], HasSubstr("restart the nodes of this file"));
}

TEST_F(GpuWatchTest, TheRateOfErrorsCountsTheTimeBetweenReadings) {
  read(card());
  cuda::CardHealth later = card();
  later.nvlinks[0].replays = 108;  // 8 in 10 s: tolerated
  read(later, std::chrono::seconds(10));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_link_degraded_state{gpu=\"3\"} 0"));
  later.nvlinks[0].replays = 116;  // 8 in 2 s
  read(later, std::chrono::seconds(2));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_link_degraded_state{gpu=\"3\"} 1"));
}

TEST_F(GpuWatchTest, ACardThatDoesNotAnswerIsShown) {
  read(card());
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_readable_state{gpu=\"3\"} 1"));
  read(fail(ErrorCode::kDeviceLost, "fallen off the bus"));
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_readable_state{gpu=\"3\"} 0"));
  read(card());
  EXPECT_THAT(text(), HasSubstr("tandem_gpu_readable_state{gpu=\"3\"} 1"));
}

TEST_F(GpuWatchTest, ItsThreadReadsAndEndsWithIt) {
  std::atomic<int> readings{0};
  {
    GpuWatch watch("0",
                   [&] {
                     ++readings;
                     readings.notify_all();
                     return Result<cuda::CardHealth>(card());
                   },
                   {.clock = clock_, .log = Logger(sink_, LogLevel::kError), .metrics = metrics_});
    watch.start(std::chrono::hours(1));
    readings.wait(0);
  }
  EXPECT_EQ(readings.load(), 1);
}

}  // namespace
}  // namespace tandem::node
