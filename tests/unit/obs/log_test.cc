#include "common/obs/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "common/base/json_text.h"
#include "common/base/utf8.h"
#include "common/obs/trace.h"

namespace tandem {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

// A sink that writes into a pipe, read back by the test.
class Logs : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    read_end_ = Fd(ends[0]);
    sink_ = std::make_unique<LogSink>(Fd(ends[1]), clock_);
  }
  std::string read() {
    std::string out;
    char buffer[8192];
    ssize_t n = 0;
    while ((n = ::read(read_end_.get(), buffer, sizeof buffer)) > 0)
      out.append(buffer, static_cast<size_t>(n));
    return out;
  }
  // Exactly one line, parsed by another library.
  json::object one() {
    const std::string text = read();
    EXPECT_TRUE(text.ends_with("}\n")) << text;
    EXPECT_EQ(text.find('\n'), text.size() - 1);
    EXPECT_TRUE(is_valid_utf8(text));
    return json::parse(text).as_object();
  }
  Logger logger(LogLevel level = LogLevel::kInfo) { return Logger(*sink_, level); }

  ManualClock clock_;
  Fd read_end_;
  std::unique_ptr<LogSink> sink_;
};

TEST_F(Logs, ALineHoldsTimeLevelEventContextAndFields) {
  clock_.advance(std::chrono::milliseconds(1500));
  const Logger log = logger().with({{"role", "decode"}, {"node", std::string("d-0")}});
  log.info("started",
           {{"port", 8000}, {"ok", true}, {"share", 0.25}, {"big", UINT64_MAX}, {"negative", -3}});
  const json::object line = one();
  EXPECT_EQ(line.at("time").as_string(), "2023-11-14T22:13:21.500000Z");
  EXPECT_EQ(line.at("level").as_string(), "info");
  EXPECT_EQ(line.at("event").as_string(), "started");
  EXPECT_EQ(line.at("role").as_string(), "decode");
  EXPECT_EQ(line.at("node").as_string(), "d-0");
  EXPECT_EQ(line.at("port").as_int64(), 8000);
  EXPECT_TRUE(line.at("ok").as_bool());
  EXPECT_EQ(line.at("share").as_double(), 0.25);
  EXPECT_EQ(line.at("big").as_uint64(), UINT64_MAX);
  EXPECT_EQ(line.at("negative").as_int64(), -3);
}

TEST_F(Logs, AListOfNumbersIsAnArray) {
  const std::vector<uint64_t> ids{7, UINT64_MAX};
  logger().info("request", {{"requests", ids}, {"none", std::vector<uint64_t>{}}});
  const json::object line = one();
  EXPECT_EQ(json::serialize(line.at("requests")), "[7,18446744073709551615]");
  EXPECT_TRUE(line.at("none").as_array().empty());
}

TEST_F(Logs, LevelsBelowTheLimitAreNotWritten) {
  const Logger log = logger(LogLevel::kWarning);
  log.debug("a");
  log.info("b");
  EXPECT_EQ(read(), "");
  log.warning("c");
  EXPECT_EQ(one().at("level").as_string(), "warning");
  log.error("d", make_error(ErrorCode::kIo, "disk full", "log.file"));
  const json::object line = one();
  EXPECT_EQ(line.at("error").as_string(), "disk full");
  EXPECT_EQ(line.at("error_code").as_string(), "io");
  EXPECT_EQ(line.at("param").as_string(), "log.file");
  EXPECT_THAT(std::string(line.at("origin").as_string()), HasSubstr("log_test.cc:"));
}

TEST_F(Logs, AnyTextMakesValidJson) {
  std::string every_byte;
  for (int b = 0; b < 256; ++b) every_byte += static_cast<char>(b);
  for (const std::string& text :
       {every_byte, std::string("\"\\\n\r\t\x7f"), std::string("\xf0\x9f\x98"),
        std::string("\xc0\x80"), std::string("\xed\xa0\x80"),
        std::string("caf\xc3\xa9 \xf0\x9f\x98\x80")}) {
    logger().info(text, {{"key \"" + text.substr(0, 3), text}});
    EXPECT_NO_THROW(one()) << text;
  }
  logger().info("numbers",
                {{"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}});
  EXPECT_TRUE(one().at("nan").is_null());
}

TEST_F(Logs, LongTextsAndManyFieldsAreCutAndStayValid) {
  std::string wide;
  for (int i = 0; i < 5000; ++i) wide += "\xe2\x82\xac";
  logger().info("long", {{"text", wide}, {"after", 1}});
  json::object line = one();
  EXPECT_LT(line.at("text").as_string().size(), 1100u);
  EXPECT_THAT(std::string(line.at("text").as_string()), ::testing::EndsWith("…"));
  EXPECT_EQ(line.at("after").as_int64(), 1);
  const std::string kilo(1000, '\x01');  // six bytes each once escaped
  logger().info("many", {{"a", kilo}, {"b", kilo}});
  const std::string text = read();
  EXPECT_LE(text.size(), LogSink::kMaxLine);
  EXPECT_TRUE(json::parse(text).as_object().at("cut").as_bool());
}

TEST_F(Logs, ASlowReaderCostsLinesNotTime) {
  const Logger log = logger();
  const std::string text(900, 'x');
  const SteadyClock clock;
  const TimePoint start = clock.now();
  for (int i = 0; i < 120; ++i) log.info("flood", {{"text", text}});
  EXPECT_LT(clock.now() - start, std::chrono::seconds(5));
  const uint64_t dropped = sink_->dropped();
  EXPECT_GT(dropped, 0u);
  const std::string got = read();
  EXPECT_EQ(static_cast<uint64_t>(std::count(got.begin(), got.end(), '\n')) + dropped, 120u);
  log.info("again");
  EXPECT_EQ(one().at("lines_dropped").to_number<uint64_t>(), dropped);
  log.info("and again");
  EXPECT_FALSE(one().contains("lines_dropped"));
}

TEST_F(Logs, LinesOfManyThreadsDoNotMix) {
  std::atomic<bool> done{false};
  std::string all;
  std::thread reader([&] {
    while (!done) {
      all += read();
      std::this_thread::yield();
    }
    all += read();
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) logger().info("e", {{"t", t}, {"i", i}});
    });
  }
  for (auto& w : writers) w.join();
  done = true;
  reader.join();
  std::istringstream lines(all);
  std::string line;
  size_t count = 0;
  while (std::getline(lines, line)) {
    EXPECT_NO_THROW(json::parse(line));
    ++count;
  }
  EXPECT_EQ(count + sink_->dropped(), 2000u);
}

TEST(LogFiles, AreAppendedToAndErrorsNameThem) {
  SteadyClock clock;
  const std::string path = "/tmp/tandem-log-test-" + std::to_string(::getpid());
  for (int i = 0; i < 2; ++i) {
    auto sink = LogSink::open(path, clock).value();
    Logger(*sink, LogLevel::kInfo).info("x");
  }
  std::ifstream file(path);
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) ++lines;
  EXPECT_EQ(lines, 2);
  std::filesystem::remove(path);
  const auto bad = LogSink::open("/nonexistent/dir/log", clock);
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().detail, HasSubstr("/nonexistent/dir/log"));
}

TEST_F(Logs, StartupPhasesAreTimed) {
  StartupPhases phases(clock_, logger());
  phases.next("read_config");
  clock_.advance(std::chrono::seconds(1));
  phases.next("load_weights");
  clock_.advance(std::chrono::seconds(2));
  phases.done();
  std::istringstream lines(read());
  std::string line;
  std::vector<std::pair<std::string, double>> seen;
  while (std::getline(lines, line)) {
    const json::object o = json::parse(line).as_object();
    seen.emplace_back(o.contains("phase") ? o.at("phase").as_string() : o.at("event").as_string(),
                      o.at("seconds").to_number<double>());
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(std::pair<std::string, double>("read_config", 1),
                                           std::pair<std::string, double>("load_weights", 2),
                                           std::pair<std::string, double>("startup_done", 3)));
}

TEST(Traces, MarksGiveSecondsAndAreBounded) {
  ManualClock clock;
  Trace trace(clock);
  clock.advance(std::chrono::seconds(1));
  trace.mark("queued");
  clock.advance(std::chrono::seconds(2));
  trace.mark("done");
  EXPECT_DOUBLE_EQ(trace.seconds_to("done"), 3);
  EXPECT_DOUBLE_EQ(trace.seconds_between("queued", "done"), 2);
  EXPECT_LT(trace.seconds_to("never"), 0);
  EXPECT_EQ(trace.to_json(), R"({"queued":1,"done":3})");
  for (int i = 0; i < 100; ++i) trace.mark("more");
  EXPECT_EQ(json::parse(trace.to_json()).as_object().size(), 3u);
}

}  // namespace
}  // namespace tandem
