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
  // Counters, and the info metric that names the transport in use: what it really uses is known
  // once peers are connected.
  void transport(const transport::Transport& transport);

 private:
  Gauge used_, cached_, free_, miss_ratio_;
  Counter hit_tokens_, miss_tokens_, evicted_;
  Counter bad_checksum_, malformed_, foreign_, unknown_, replayed_, expired_;
  Counter frames_sent_, frames_received_, bytes_sent_, bytes_received_;
  GaugeFamily info_;
  std::string detail_;
  // Counters of the pool and the transport are totals; metrics want what came on top.
  KvUsage last_usage_;
  transport::TransportCounters last_;
};

}  // namespace tandem::node
