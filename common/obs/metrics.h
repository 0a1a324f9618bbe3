#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace tandem {

// Handles to one time series. Cheap values, any thread, valid as long as their registry.
class Counter {
 public:
  explicit Counter(prometheus::Counter& series) : series_(&series) {}
  void add(double amount = 1.0);  // negative amounts are ignored
  [[nodiscard]] double value() const;

 private:
  prometheus::Counter* series_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge& series) : series_(&series) {}
  void set(double value);
  void add(double amount);
  [[nodiscard]] double value() const;

 private:
  prometheus::Gauge* series_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram& series) : series_(&series) {}
  void observe(double value);

 private:
  prometheus::Histogram* series_;
};

// A label and the values it may take. Whatever else is asked for is counted under "other", so no
// request can make series without end. Counters and histograms all of whose labels name their
// values have every series from the start: rate() and alerts see the first event only if there was
// a 0 before it. (A gauge that nobody has set would lie.)
struct Label {
  std::string name;
  std::vector<std::string> values = {};  // empty: the first `max_values` that come
  size_t max_values = 32;
};

// A metric with labels. `with({"POST", "2xx"})` gives the series of those values, in the order of
// the labels. It takes a lock and a look-up: keep the handle where it matters. Any thread.
template <typename Series>
class MetricFamily {
 public:
  struct Impl;
  explicit MetricFamily(Impl& impl) : impl_(&impl) {}
  [[nodiscard]] Series with(std::initializer_list<std::string_view> values) const;

 private:
  Impl* impl_;
};
using CounterFamily = MetricFamily<Counter>;
using GaugeFamily = MetricFamily<Gauge>;
using HistogramFamily = MetricFamily<Histogram>;

// Bucket bounds in seconds. Latencies: 1 ms to 2 min; short ones (ITL, hand-over, steps): 100 us to
// 5 s.
inline constexpr double kLatencyBuckets[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                             0.5,   1,      2.5,   5,    10,    30,   60,  120};
inline constexpr double kShortLatencyBuckets[] = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5};
// Tokens, sequences, blocks: powers of two.
inline constexpr double kCountBuckets[] = {1,   2,   4,    8,    16,   32,   64,    128,
                                           256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

// The metrics of one process; one per process, made by main() and passed on. Names are
// tandem_<subsystem>_<what>_<unit>; counters end in _total. A name may be declared once, except
// with the same type and labels, which gives the same metric again. Wrong names and re-declarations
// are defects of the program and abort. Any thread.
class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  Counter counter(const std::string& name, const std::string& help);
  Gauge gauge(const std::string& name, const std::string& help);
  Histogram histogram(const std::string& name, const std::string& help,
                      std::span<const double> buckets);

  CounterFamily counters(const std::string& name, const std::string& help,
                         std::vector<Label> labels);
  GaugeFamily gauges(const std::string& name, const std::string& help, std::vector<Label> labels);
  HistogramFamily histograms(const std::string& name, const std::string& help,
                             std::vector<Label> labels, std::span<const double> buckets);

  // The Prometheus text format, to be served as kMetricsContentType.
  [[nodiscard]] std::string exposition() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace tandem
