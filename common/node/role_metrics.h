#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/node/kv_metrics.h"
#include "common/obs/metrics.h"

namespace tandem::node {

// How work ended: `well`, or the label of the error.
[[nodiscard]] Label outcome_label(std::string well);

// Metrics that both roles have alike, beside those of the KV pool and the transport. `subsystem` is
// "prefill" or "decode". Control thread only.
class RoleMetrics {
 public:
  RoleMetrics(MetricsRegistry& registry, const std::string& subsystem);

  void transport(const transport::Transport& transport) { kv_.transport(transport); }
  void generation_fenced() { fenced_.add(); }
  void duplicate() { duplicates_.add(); }
  void step_failed() { failed_steps_.add(); }

 protected:
  void usage(const KvUsage& usage) { kv_.usage(usage); }
  void step(Duration took) { step_seconds_.observe(to_seconds(took)); }

 private:
  KvMetrics kv_;
  Counter fenced_, duplicates_, failed_steps_;
  Histogram step_seconds_;
};

}  // namespace tandem::node
