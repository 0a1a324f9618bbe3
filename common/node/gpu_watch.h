#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/cuda/card_health.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"

namespace tandem::node {

// Watches one card: reads it every few seconds on a thread of its own, since a reading may stall
// for a hundred milliseconds, turns it into tandem_gpu_* metrics, and logs each trouble of its
// links once when it comes and once when it goes. Public functions on any thread.
class GpuWatch {
 public:
  using Read = std::function<Result<cuda::CardHealth>()>;
  struct Deps {
    const Clock& clock;
    const Logger log;
    MetricsRegistry& metrics;
  };

  // `card` labels the series: the device's number. `read` is called by one thread at a time.
  GpuWatch(std::string card, Read read, const Deps& deps);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  void start(Duration period);  // the first reading at once
  void sample();                // one reading now; start() does it for you

 private:
  struct Series;

  void publish(const cuda::CardHealth& now);
  void judge(const cuda::CardHealth& now, double seconds);
  void run(Duration period);

  const std::string card_;
  const Read read_;
  const Clock& clock_;
  const Logger log_;
  std::unique_ptr<Series> series_;

  // The reading thread alone.
  std::optional<cuda::CardHealth> last_;
  TimePoint last_time_{};
  bool unreadable_ = false;
  bool degraded_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // under mutex_
  std::thread thread_;
};

// A watch of CUDA's device `index` through NVML, running; null with a log line when NVML is not
// there, which is no reason not to serve. `folders`: gpu.libraries.
[[nodiscard]] std::unique_ptr<GpuWatch> watch_device(uint32_t index,
                                                     const std::vector<std::string>& folders,
                                                     const GpuWatch::Deps& deps);

}  // namespace tandem::node
