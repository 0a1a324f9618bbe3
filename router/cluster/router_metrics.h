#pragma once

#include <set>
#include <string>
#include <string_view>

#include "common/obs/metrics.h"
#include "router/dispatch/types.h"

namespace tandem::router {

// The router's metrics (design.md section 10). Handles may be used by any thread; publish() by one.
class RouterMetrics {
 public:
  explicit RouterMetrics(MetricsRegistry& registry);

  // Copies a snapshot: counters advance by what happened since the last one.
  void publish(const ClusterSnapshot& snapshot);

  // One HTTP request that was answered, or given up by its client (499).
  void answered(std::string_view route, int status);
  // The same for what the HTTP server answered itself: refusals, CORS preflights.
  void answered_by_server(int status) { answered(status < 300 ? "preflight" : "refused", status); }

  HistogramFamily request_seconds;  // route: of those that generate
  Histogram ttft_seconds;
  Histogram itl_seconds;
  Histogram e2e_seconds;
  Histogram queue_wait_seconds;
  Histogram prefill_to_decode_seconds;
  HistogramFamily transfer_seconds;  // transport
  Histogram prompt_tokens_per_request;
  Histogram output_tokens_per_request;
  Counter prompt_tokens;
  Counter cached_tokens;
  Counter output_tokens;
  Counter client_disconnects;
  Counter slow_clients;

 private:
  void publish_nodes(const ClusterSnapshot& snapshot);
  void publish_counters(const DispatchCounters& now);

  CounterFamily requests_;  // route, status
  Gauge queue_depth_, queue_capacity_, queue_oldest_seconds_, running_, ready_;
  GaugeFamily nodes_;           // role, state
  GaugeFamily node_kv_blocks_;  // node, state
  GaugeFamily node_load_;       // node, what
  GaugeFamily node_rate_;       // node: tokens per second
  GaugeFamily breaker_;         // node: 0 closed, 1 half open, 2 open
  GaugeFamily kv_miss_ratio_;   // role
  CounterFamily dispatched_;    // way
  Counter submitted_, finished_, failed_, cancelled_, rejected_, rejected_full_, retries_, resumes_,
      failovers_;
  Counter nodes_lost_, fenced_, stale_, repeated_, leases_expired_, reserve_timeouts_, stalls_;
  Counter breaker_opened_, handshakes_refused_;
  Counter transfers_, transfer_raw_bytes_, transfer_wire_bytes_;
  DispatchCounters last_;
  std::set<std::string> known_nodes_;
};

}  // namespace tandem::router
