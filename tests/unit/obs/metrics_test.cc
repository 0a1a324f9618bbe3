#include "common/obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <sstream>

namespace tandem {
namespace {

using ::testing::HasSubstr;

using Labels = std::map<std::string, std::string>;
struct Sample {
  std::string name;
  Labels labels;
  double value = 0;
};

// A strict reader of the Prometheus text format 0.0.4, written from its specification. Fails the
// test at anything the specification does not allow.
class StrictReader {
 public:
  explicit StrictReader(const std::string& text) {
    EXPECT_TRUE(text.empty() || text.back() == '\n') << "the last line must end";
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
        comment(line);
      } else {
        samples.push_back(parse(line));
      }
    }
    check_histograms();
  }

  std::optional<double> value(const std::string& name, const Labels& labels = {}) const {
    for (const auto& s : samples) {
      if (s.name == name && s.labels == labels) return s.value;
    }
    return std::nullopt;
  }
  size_t count(const std::string& name) const {
    size_t n = 0;
    for (const auto& s : samples) n += s.name == name ? 1 : 0;
    return n;
  }

  std::vector<Sample> samples;
  std::map<std::string, std::string> types;

 private:
  void comment(const std::string& line) {
    std::istringstream words(line);
    std::string hash, kind, name, rest;
    words >> hash >> kind >> name >> rest;
    if (kind != "TYPE") return;
    EXPECT_TRUE(types.emplace(name, rest).second) << "TYPE twice: " << name;
    EXPECT_THAT((std::set<std::string>{"counter", "gauge", "histogram"}),
                ::testing::Contains(rest));
  }

  static Sample parse(const std::string& line) {
    Sample s;
    size_t at = 0;
    const auto is_name = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':';
    };
    while (at < line.size() && is_name(line[at])) s.name += line[at++];
    EXPECT_FALSE(s.name.empty()) << line;
    if (at < line.size() && line[at] == '{') {
      ++at;
      while (line.at(at) != '}') {
        std::string key, value;
        while (is_name(line.at(at))) key += line[at++];
        EXPECT_EQ(line.at(at), '=') << line;
        EXPECT_EQ(line.at(at + 1), '"') << line;
        at += 2;
        while (line.at(at) != '"') {
          if (line[at] == '\\') {
            ++at;
            EXPECT_THAT(std::string("\\\"n"), HasSubstr(std::string(1, line.at(at)))) << line;
            value += line[at] == 'n' ? '\n' : line[at];
          } else {
            value += line[at];
          }
          ++at;
        }
        ++at;
        EXPECT_TRUE(s.labels.emplace(key, value).second) << "label twice: " << line;
        if (line.at(at) == ',') ++at;
      }
      ++at;
    }
    EXPECT_EQ(line.at(at), ' ') << line;
    const std::string number = line.substr(at + 1);
    char* end = nullptr;
    s.value = number == "+Inf" ? INFINITY : std::strtod(number.c_str(), &end);
    EXPECT_TRUE(number == "+Inf" || (end != number.c_str() && *end == '\0')) << line;
    return s;
  }

  void check_histograms() {
    for (const auto& [name, type] : types) {
      if (type != "histogram") continue;
      std::map<Labels, std::vector<std::pair<double, double>>> buckets;
      for (const auto& s : samples) {
        if (s.name != name + "_bucket") continue;
        Labels rest = s.labels;
        const std::string le = rest.at("le");
        rest.erase("le");
        buckets[rest].emplace_back(le == "+Inf" ? INFINITY : std::stod(le), s.value);
      }
      EXPECT_FALSE(buckets.empty()) << name;
      for (const auto& [labels, list] : buckets) {
        for (size_t i = 1; i < list.size(); ++i) {
          EXPECT_LT(list[i - 1].first, list[i].first) << name;
          EXPECT_LE(list[i - 1].second, list[i].second) << name;
        }
        EXPECT_TRUE(std::isinf(list.back().first)) << name;
        EXPECT_EQ(list.back().second, value(name + "_count", labels)) << name;
        EXPECT_TRUE(value(name + "_sum", labels)) << name;
      }
    }
  }
};

TEST(Metrics, CountersGaugesAndHistogramsAreExposed) {
  MetricsRegistry registry;
  Counter tokens = registry.counter("tandem_router_tokens_total", "Tokens");
  Gauge depth = registry.gauge("tandem_router_queue_depth", "Depth");
  Histogram ttft = registry.histogram("tandem_router_ttft_seconds", "TTFT", kLatencyBuckets);
  tokens.add();
  tokens.add(4);
  tokens.add(-1);
  depth.set(7);
  depth.add(-2);
  for (const double v : {0.0005, 0.02, 0.02, 300.0}) ttft.observe(v);
  const StrictReader read(registry.exposition());
  EXPECT_EQ(read.types.at("tandem_router_tokens_total"), "counter");
  EXPECT_EQ(read.value("tandem_router_tokens_total"), 5);
  EXPECT_EQ(read.value("tandem_router_queue_depth"), 5);
  EXPECT_EQ(read.value("tandem_router_ttft_seconds_count"), 4);
  EXPECT_EQ(read.value("tandem_router_ttft_seconds_bucket", {{"le", "0.025"}}), 3);
  EXPECT_EQ(read.value("tandem_router_ttft_seconds_bucket", {{"le", "120"}}), 3);
  EXPECT_EQ(read.value("tandem_router_ttft_seconds_bucket", {{"le", "+Inf"}}), 4);
}

TEST(Metrics, LabelValuesAreEscaped) {
  MetricsRegistry registry;
  const std::string nasty = "a\"b\\c\nd";
  registry.counters("tandem_router_requests_total", "Requests", {Label{.name = "model"}})
      .with({nasty})
      .add(3);
  const StrictReader read(registry.exposition());
  EXPECT_EQ(read.value("tandem_router_requests_total", {{"model", nasty}}), 3);
}

TEST(Metrics, UnknownValuesShareOneSeries) {
  MetricsRegistry registry;
  const CounterFamily closed = registry.counters(
      "tandem_router_errors_total", "Errors", {Label{.name = "code", .values = {"timeout", "io"}}});
  closed.with({"timeout"}).add();
  const CounterFamily open = registry.counters("tandem_router_requests_total", "Requests",
                                               {Label{.name = "model", .max_values = 8}});
  for (int i = 0; i < 1000; ++i) {
    closed.with({"made up " + std::to_string(i)}).add();
    open.with({"model " + std::to_string(i)}).add();
  }
  open.with({"\xff\xfe"}).add();
  const StrictReader read(registry.exposition());
  EXPECT_EQ(read.count("tandem_router_errors_total"), 3u) << "timeout, io and other";
  EXPECT_EQ(read.value("tandem_router_errors_total", {{"code", "other"}}), 1000);
  EXPECT_EQ(read.count("tandem_router_requests_total"), 9u);
  EXPECT_EQ(read.value("tandem_router_requests_total", {{"model", "model 3"}}), 1);
  EXPECT_EQ(read.value("tandem_router_requests_total", {{"model", "other"}}), 993);
}

// rate() of a counter misses the first event if there was no 0 before it.
TEST(Metrics, KnownSeriesAreThereBeforeTheFirstEvent) {
  MetricsRegistry registry;
  (void)registry.counters("tandem_net_rejected_total", "Rejected",
                          {Label{.name = "reason", .values = {"tls", "timeout"}},
                           Label{.name = "way", .values = {"in", "out"}}});
  (void)registry.histograms("tandem_net_took_seconds", "Took",
                            {Label{.name = "way", .values = {"in", "out"}}}, kLatencyBuckets);
  (void)registry.counters("tandem_net_errors_total", "Errors",
                          {Label{.name = "peer"}, Label{.name = "way", .values = {"in"}}});
  (void)registry.gauges("tandem_net_load_ratio", "Load", {Label{.name = "way", .values = {"in"}}});
  const StrictReader read(registry.exposition());
  EXPECT_EQ(read.count("tandem_net_rejected_total"), 4u);
  EXPECT_EQ(read.value("tandem_net_rejected_total", {{"reason", "tls"}, {"way", "out"}}), 0);
  EXPECT_EQ(read.value("tandem_net_took_seconds_count", {{"way", "in"}}), 0);
  EXPECT_EQ(read.count("tandem_net_errors_total"), 0u) << "its peers are not known";
  EXPECT_EQ(read.count("tandem_net_load_ratio"), 0u) << "nobody has set it";
}

TEST(Metrics, TheSameDeclarationGivesTheSameMetric) {
  MetricsRegistry registry;
  registry.counter("tandem_net_bytes_total", "Bytes").add(1);
  registry.counter("tandem_net_bytes_total", "Bytes").add(2);
  EXPECT_EQ(StrictReader(registry.exposition()).value("tandem_net_bytes_total"), 3);
}

TEST(MetricsDeathTest, DefectsOfTheProgramAbort) {
  MetricsRegistry registry;
  registry.counter("tandem_net_bytes_total", "Bytes");
  EXPECT_DEATH(registry.gauge("tandem_net_bytes_total", "Bytes"), "_total");
  EXPECT_DEATH(registry.counter("tandem_net_bytes", "Bytes"), "_total");
  EXPECT_DEATH(registry.gauge("net_bytes", "Bytes"), "tandem_<subsystem>");
  EXPECT_DEATH((void)registry.counters("tandem_net_bytes_total", "Bytes", {Label{.name = "a"}}),
               "declared twice");
}

TEST(Metrics, ContentTypeIsTheTextFormats) {
  EXPECT_EQ(kMetricsContentType, "text/plain; version=0.0.4; charset=utf-8");
}

}  // namespace
}  // namespace tandem
