#pragma once

#include <string>
#include <string_view>

#include "common/node/kv_store.h"
#include "common/obs/metrics.h"
#include "common/transport/transport.h"

namespace tandem::node {

// What both kinds of node say about their KV pool, prefix index and transport. `subsystem` is
// "prefill" or "decode". Control thread only.
class KvMetrics {
 public:
  KvMetrics(MetricsRegistry& registry, const std::string& subsystem);

  void usage(const KvUsage& usage);
  void transport(const transport::TransportCounters& counters);
  // The info metric that names the transport in use.
  void transport_name(MetricsRegistry& registry, std::string_view name, std::string_view detail);

 private:
  std::string subsystem_;
  Gauge used_, cached_, free_, miss_ratio_;
  Counter hit_tokens_, miss_tokens_, evicted_;
  CounterFamily rejected_;
  Counter expired_;
  CounterFamily frames_;
  CounterFamily frame_bytes_;
  // Counters of the pool and the transport are totals; metrics want what came on top.
  KvUsage last_usage_;
  transport::TransportCounters last_;
};

}  // namespace tandem::node
