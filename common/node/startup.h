#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"

namespace tandem::node {

// Times the phases of a start, logs each as it ends and keeps them as a metric: a slow start says
// where it spends its time.
class Startup {
 public:
  Startup(const Clock& clock, const Logger& log, MetricsRegistry& metrics,
          const std::string& subsystem)
      : clock_(clock),
        log_(log),
        seconds_(metrics.gauges("tandem_" + subsystem + "_startup_seconds",
                                "Duration of each phase of this start", {Label{"phase", {}}})),
        begin_(clock.now()) {}

  // Runs one phase; its error names it.
  template <typename Work>
  [[nodiscard]] Status phase(std::string_view name, Work&& work) {
    const TimePoint from = clock_.now();
    Status status = std::forward<Work>(work)();
    const double seconds = to_seconds(clock_.now() - from);
    if (!status) {
      log_.error("start_failed", status.error(), {{"phase", name}, {"seconds", seconds}});
      return status;
    }
    log_.info("start_phase", {{"phase", name}, {"seconds", seconds}});
    seconds_.with({name}).set(seconds);
    return {};
  }
  [[nodiscard]] double total_seconds() const { return to_seconds(clock_.now() - begin_); }

 private:
  const Clock& clock_;
  const Logger& log_;
  GaugeFamily seconds_;
  TimePoint begin_;
};

}  // namespace tandem::node
