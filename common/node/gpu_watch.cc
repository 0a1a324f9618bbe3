#include "common/node/gpu_watch.h"

#include <algorithm>
#include <utility>

#include "common/cuda/card_monitor.h"
#include "common/cuda/device_info.h"

namespace tandem::node {
namespace {

constexpr Duration kPeriod = std::chrono::seconds(5);

uint64_t grown(std::optional<uint64_t> now, std::optional<uint64_t> before) {
  return now.value_or(0) - std::min(now.value_or(0), before.value_or(0));
}

}  // namespace

struct GpuWatch::Series {
  explicit Series(MetricsRegistry& m) : metrics(m) {}

  // Only what the card tells gets a series.
  template <typename Value>
  void gauge(const std::string& name, const std::string& help, const std::string& card,
             const std::optional<Value>& value) {
    if (!value) return;
    metrics.gauges("tandem_gpu_" + name, help, {{.name = "gpu"}})
        .with({card})
        .set(static_cast<double>(*value));
  }
  void count(const std::string& name, const std::string& help, const std::string& card,
             std::string_view kind, uint64_t amount) {
    metrics.counters("tandem_gpu_" + name, help, {{.name = "gpu"}, {.name = "kind"}})
        .with({card, kind})
        .add(static_cast<double>(amount));
  }

  MetricsRegistry& metrics;
};

GpuWatch::GpuWatch(std::string card, Read read, const Deps& deps)
    : card_(std::move(card)),
      read_(std::move(read)),
      clock_(deps.clock),
      log_(deps.log),
      series_(std::make_unique<Series>(deps.metrics)) {}

GpuWatch::~GpuWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GpuWatch::start(Duration period) {
  thread_ = std::thread([this, period] { run(period); });
}

void GpuWatch::run(Duration period) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    sample();
    lock.lock();
    wake_.wait_for(lock, period, [this] { return stopping_; });
  }
}

void GpuWatch::sample() {
  auto now = read_();
  series_->gauge("readable_state", "1 when the card answers NVML", card_,
                 std::optional(now ? 1 : 0));
  if (!now) {
    if (!std::exchange(unreadable_, true))
      log_.warning("gpu_unreadable", {{"gpu", card_}, {"detail", now.error().detail}});
    return;
  }
  if (std::exchange(unreadable_, false)) log_.info("gpu_readable_again", {{"gpu", card_}});
  const TimePoint time = clock_.now();
  publish(*now);
  judge(*now, last_ ? to_seconds(time - last_time_) : 0);
  last_ = std::move(*now);
  last_time_ = time;
}

void GpuWatch::publish(const cuda::CardHealth& now) {
  Series& s = *series_;
  s.gauge("temperature_celsius", "Temperature of the chip", card_, now.temperature_celsius);
  s.gauge("power_watts", "Power drawn", card_, now.power_watts);
  s.gauge("power_limit_watts", "Power that the card may draw", card_, now.power_limit_watts);
  s.gauge("sm_clock_hertz", "Clock of the multiprocessors", card_, now.sm_clock_hertz);
  s.gauge("memory_clock_hertz", "Clock of the memory", card_, now.memory_clock_hertz);
  s.gauge("busy_ratio", "Share of the last sample period in which a kernel ran", card_,
          now.busy_ratio);
  s.gauge("memory_used_bytes", "Memory in use by all processes", card_, now.memory_used_bytes);
  s.gauge("memory_total_bytes", "Memory of the card", card_, now.memory_total_bytes);
  s.gauge("pcie_generation_count", "PCIe generation in use; lower when idle", card_,
          now.pcie_generation);
  s.gauge("pcie_lanes_count", "PCIe lanes in use", card_, now.pcie_lanes);
  const cuda::LinkState links = cuda::link_state(now);
  s.gauge("nvlink_links_count", "NVLinks of the card", card_, std::optional(links.links));
  s.gauge("nvlink_active_count", "NVLinks that are up", card_, std::optional(links.active));
  s.gauge("nvlink_bandwidth_bytes_per_second", "Speed of the active NVLinks together, one way",
          card_, std::optional(links.bytes_per_second));
  for (const char* reason : {"power", "temperature", "hardware"}) {
    const bool slow =
        std::find(now.slowed_by.begin(), now.slowed_by.end(), reason) != now.slowed_by.end();
    s.metrics
        .gauges("tandem_gpu_slowed_state", "1 while the clocks are held down for this reason",
                {{.name = "gpu"}, {.name = "reason"}})
        .with({card_, reason})
        .set(slow ? 1 : 0);
  }
  // NVML counts since the driver was loaded; a counter of this process counts what came since its
  // first reading.
  const cuda::CardHealth& before = last_ ? *last_ : now;
  const cuda::LinkState past = cuda::link_state(before);
  constexpr const char* kNvLink = "Errors of all NVLinks together";
  s.count("nvlink_errors_total", kNvLink, card_, "replay", grown(links.replays, past.replays));
  s.count("nvlink_errors_total", kNvLink, card_, "recovery",
          grown(links.recoveries, past.recoveries));
  s.count("nvlink_errors_total", kNvLink, card_, "crc", grown(links.crc_errors, past.crc_errors));
  s.count("pcie_errors_total", "Errors of the PCIe link", card_, "replay",
          grown(now.pcie_replays, before.pcie_replays));
  constexpr const char* kEcc = "Memory errors found by ECC";
  s.count("ecc_errors_total", kEcc, card_, "corrected",
          grown(now.ecc_corrected, before.ecc_corrected));
  s.count("ecc_errors_total", kEcc, card_, "uncorrected",
          grown(now.ecc_uncorrected, before.ecc_uncorrected));
}

void GpuWatch::judge(const cuda::CardHealth& now, double seconds) {
  const std::vector<std::string> found =
      cuda::link_problems(now, last_ ? &*last_ : nullptr, seconds);
  series_->gauge("link_degraded_state", "1 while NVLink, PCIe or memory are not as they should be",
                 card_, std::optional(found.empty() ? 0 : 1));
  const bool before = std::exchange(degraded_, !found.empty());
  if (!before && degraded_) {
    std::string text = found[0];
    for (size_t i = 1; i < found.size(); ++i) text += "; " + found[i];
    log_.warning("gpu_link_degraded",
                 {{"gpu", card_},
                  {"uuid", now.uuid},
                  {"problems", text},
                  {"action",
                   "the transport stays as it is; restart the nodes of this file to choose it "
                   "again by the links (transport.kind: auto)"}});
  }
  if (before && !degraded_) log_.info("gpu_link_recovered", {{"gpu", card_}});
}

std::unique_ptr<GpuWatch> watch_device(uint32_t index, const std::vector<std::string>& folders,
                                       const GpuWatch::Deps& deps) {
  const auto devices = cuda::list_devices();
  auto monitor = cuda::CardMonitor::open(folders);
  if (!devices || index >= devices->size() || !monitor) {
    const std::string why = !devices   ? devices.error().detail
                            : !monitor ? monitor.error().detail
                                       : "no device " + std::to_string(index);
    deps.log.warning("gpu_not_watched", {{"gpu", index}, {"detail", why}});
    return nullptr;
  }
  auto shared = std::make_shared<cuda::CardMonitor>(std::move(*monitor));
  auto watch = std::make_unique<GpuWatch>(
      std::to_string(index), [shared, uuid = (*devices)[index].uuid] { return shared->read(uuid); },
      deps);
  watch->start(kPeriod);
  return watch;
}

}  // namespace tandem::node
