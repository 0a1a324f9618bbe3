#include "common/obs/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <variant>

#include "common/base/check.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

constexpr std::string_view kOther = "other";

bool is_lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_metric_name(std::string_view name) {
  return name.starts_with("tandem_") && std::all_of(name.begin(), name.end(), is_lower_or_digit);
}

bool is_label_name(std::string_view name) {
  return !name.empty() && name[0] >= 'a' && name[0] <= 'z' && name != "le" &&
         std::all_of(name.begin(), name.end(), is_lower_or_digit);
}

using Values = std::vector<std::string>;

// Orders values with views of values, so that a look-up makes no copies.
struct ValuesLess {
  using is_transparent = void;
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return std::lexicographical_compare(
        a.begin(), a.end(), b.begin(), b.end(),
        [](std::string_view x, std::string_view y) { return x < y; });
  }
};

constexpr size_t kMaxLabels = 4;

// One label with the values that have a series of their own.
struct BoundedLabel {
  std::string name;
  std::vector<std::string> known;
  bool open = false;  // new values are added up to max
  size_t max = 0;

  // Valid until the next value is resolved here, and as long as `value`.
  std::string_view resolve(std::string_view value) {
    if (std::find(known.begin(), known.end(), value) != known.end()) return value;
    // The exposition format is UTF-8; a byte that is not would spoil the whole scrape.
    if (open && known.size() < max && is_valid_utf8(value)) {
      known.emplace_back(value);
      return known.back();
    }
    return kOther;
  }
};

}  // namespace

template <typename Series>
struct PrometheusType;
template <>
struct PrometheusType<Counter> {
  using type = prometheus::Counter;
};
template <>
struct PrometheusType<Gauge> {
  using type = prometheus::Gauge;
};
template <>
struct PrometheusType<Histogram> {
  using type = prometheus::Histogram;
};

template <typename Series>
struct MetricFamily<Series>::Impl {
  using Native = typename PrometheusType<Series>::type;

  prometheus::Family<Native>* family = nullptr;
  std::vector<BoundedLabel> labels;
  std::vector<double> buckets;  // histograms
  std::mutex mutex;
  std::map<Values, Native*, ValuesLess> series;  // under mutex

  void make_known(std::array<std::string_view, kMaxLabels> values, size_t at);

  Native& get(std::span<const std::string_view> values) {
    TANDEM_CHECK(values.size() == labels.size(),
                 "a metric was asked for with too few or many labels");
    std::lock_guard lock(mutex);
    std::array<std::string_view, kMaxLabels> found;
    for (size_t i = 0; i < labels.size(); ++i) found[i] = labels[i].resolve(values[i]);
    const std::span<const std::string_view> resolved(found.data(), labels.size());
    if (const auto it = series.find(resolved); it != series.end()) return *it->second;
    prometheus::Labels native;
    for (size_t i = 0; i < labels.size(); ++i) native.emplace(labels[i].name, resolved[i]);
    Native* added = nullptr;
    if constexpr (std::is_same_v<Series, Histogram>) {
      added = &family->Add(native, prometheus::Histogram::BucketBoundaries(buckets));
    } else {
      added = &family->Add(native);
    }
    series.emplace(Values(resolved.begin(), resolved.end()), added);
    return *added;
  }
};

// Makes the series of all combinations of known values, from label `at` on; none if a label is
// open.
template <typename Series>
void MetricFamily<Series>::Impl::make_known(std::array<std::string_view, kMaxLabels> values,
                                            size_t at) {
  if (at == labels.size()) {
    get(std::span(values.data(), at));
    return;
  }
  if (std::any_of(labels.begin(), labels.end(), [](const BoundedLabel& l) { return l.open; }))
    return;
  for (const std::string& value : labels[at].known) {
    values[at] = value;
    make_known(values, at + 1);
  }
}

template <typename Series>
Series MetricFamily<Series>::with(std::initializer_list<std::string_view> values) const {
  return Series(impl_->get(std::span(values.begin(), values.size())));
}

template class MetricFamily<Counter>;
template class MetricFamily<Gauge>;
template class MetricFamily<Histogram>;

void Counter::add(double amount) {
  if (amount > 0) series_->Increment(amount);
}
double Counter::value() const { return series_->Value(); }
void Gauge::set(double value) { series_->Set(value); }
void Gauge::add(double amount) {
  if (amount >= 0) {
    series_->Increment(amount);
  } else {
    series_->Decrement(-amount);
  }
}
double Gauge::value() const { return series_->Value(); }
void Histogram::observe(double value) { series_->Observe(value); }

struct MetricsRegistry::Impl {
  using Family = std::variant<std::unique_ptr<MetricFamily<Counter>::Impl>,
                              std::unique_ptr<MetricFamily<Gauge>::Impl>,
                              std::unique_ptr<MetricFamily<Histogram>::Impl>>;

  prometheus::Registry registry;
  std::mutex mutex;
  std::map<std::string, Family> families;  // under mutex

  template <typename Series, typename Builder>
  typename MetricFamily<Series>::Impl& declare(Builder builder, const std::string& name,
                                               const std::string& help, std::vector<Label> labels,
                                               std::span<const double> buckets) {
    using FamilyImpl = typename MetricFamily<Series>::Impl;
    TANDEM_CHECK(is_metric_name(name),
                 "metric names look like tandem_<subsystem>_<what>_<unit>: " + name);
    TANDEM_CHECK((std::is_same_v<Series, Counter>) == name.ends_with("_total"),
                 "counters, and only they, end in _total: " + name);
    for (const Label& label : labels) {
      TANDEM_CHECK(is_label_name(label.name), "a bad label name at metric " + name);
    }
    TANDEM_CHECK(labels.size() <= kMaxLabels, "a metric has at most four labels: " + name);
    TANDEM_CHECK(std::is_sorted(buckets.begin(), buckets.end()), "buckets must grow: " + name);
    std::lock_guard lock(mutex);
    if (const auto it = families.find(name); it != families.end()) {
      auto* same = std::get_if<std::unique_ptr<FamilyImpl>>(&it->second);
      TANDEM_CHECK(
          same != nullptr && (*same)->labels.size() == labels.size() &&
              std::equal(labels.begin(), labels.end(), (*same)->labels.begin(),
                         [](const Label& a, const BoundedLabel& b) { return a.name == b.name; }),
          "a metric was declared twice, differently: " + name);
      return **same;
    }
    auto family = std::make_unique<FamilyImpl>();
    family->family = &builder.Name(name).Help(help).Register(registry);
    family->buckets.assign(buckets.begin(), buckets.end());
    for (Label& label : labels) {
      const bool open = label.values.empty();
      family->labels.push_back(
          {std::move(label.name), std::move(label.values), open, label.max_values});
    }
    FamilyImpl& result = *family;
    families.emplace(name, std::move(family));
    if constexpr (!std::is_same_v<Series, Gauge>) result.make_known({}, 0);
    return result;
  }
};

MetricsRegistry::MetricsRegistry() : impl_(std::make_unique<Impl>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter MetricsRegistry::counter(const std::string& name, const std::string& help) {
  return counters(name, help, {}).with({});
}

Gauge MetricsRegistry::gauge(const std::string& name, const std::string& help) {
  return gauges(name, help, {}).with({});
}

Histogram MetricsRegistry::histogram(const std::string& name, const std::string& help,
                                     std::span<const double> buckets) {
  return histograms(name, help, {}, buckets).with({});
}

CounterFamily MetricsRegistry::counters(const std::string& name, const std::string& help,
                                        std::vector<Label> labels) {
  return CounterFamily(
      impl_->declare<Counter>(prometheus::BuildCounter(), name, help, std::move(labels), {}));
}

GaugeFamily MetricsRegistry::gauges(const std::string& name, const std::string& help,
                                    std::vector<Label> labels) {
  return GaugeFamily(
      impl_->declare<Gauge>(prometheus::BuildGauge(), name, help, std::move(labels), {}));
}

HistogramFamily MetricsRegistry::histograms(const std::string& name, const std::string& help,
                                            std::vector<Label> labels,
                                            std::span<const double> buckets) {
  return HistogramFamily(impl_->declare<Histogram>(prometheus::BuildHistogram(), name, help,
                                                   std::move(labels), buckets));
}

std::string MetricsRegistry::exposition() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace tandem
