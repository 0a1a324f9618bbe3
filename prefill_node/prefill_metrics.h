#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/clock.h"
#include "common/node/role_metrics.h"
#include "common/obs/metrics.h"
#include "common/transport/transport.h"

namespace tandem::prefill {

// tandem_prefill_*. Control thread only.
class PrefillMetrics : public node::RoleMetrics {
 public:
  explicit PrefillMetrics(MetricsRegistry& registry);

  void state(size_t queued, size_t computing, size_t sending, const node::KvUsage& usage);
  void started(Duration waited);
  void step(size_t sequences, uint32_t rows, Duration took);
  void prompt_done(uint32_t computed_tokens, Duration took);
  // `exposed`: part of the transfer that was still going on when computing had ended.
  void transfer(const transport::SendStats& stats, Duration exposed, Duration compute);
  void ended(std::string_view outcome) { ended_.with({outcome}).add(); }
  void deadline_exceeded() { deadlines_.add(); }

 private:
  Gauge queued_, computing_, sending_;
  Histogram wait_, step_rows_, step_sequences_, compute_seconds_;
  Histogram transfer_seconds_, exposed_seconds_, exposed_ratio_;
  Counter tokens_, raw_bytes_, wire_bytes_, exposed_total_, compute_total_;
  Counter deadlines_;
  CounterFamily ended_;
};

}  // namespace tandem::prefill
