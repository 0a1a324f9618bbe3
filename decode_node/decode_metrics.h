#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/clock.h"
#include "common/node/role_metrics.h"
#include "common/obs/metrics.h"
#include "common/transport/transport.h"

namespace tandem::decode {

// tandem_decode_*. Control thread only.
class DecodeMetrics : public node::RoleMetrics {
 public:
  explicit DecodeMetrics(MetricsRegistry& registry);

  void state(size_t reserved, size_t prefilling, size_t ready, const node::KvUsage& usage);
  void reserved() { reservations_.with({"granted"}).add(); }
  void refused(std::string_view reason) { reservations_.with({reason}).add(); }
  // `took`: from the reservation to the decode queue.
  void admitted(const transport::ReceiveStats& stats, Duration took);
  void lease_expired() { leases_expired_.add(); }
  void commit_rejected() { commits_rejected_.add(); }
  void queue_wait(Duration waited) { queue_wait_.observe(to_seconds(waited)); }
  void step(uint32_t decode_rows, uint32_t prefill_rows, Duration took);
  // A step with decode rows and prompts: whether it overran, and what the next may be planned for.
  void mixed_step(bool overran, double budget_share) {
    mixed_steps_.add();
    if (overran) overruns_.add();
    this->budget_share(budget_share);
  }
  void budget_share(double share) { budget_share_.set(share); }
  void token() { tokens_.add(); }
  void preempted() { preemptions_.add(); }
  // A request's KV has been copied to the CPU tail, or back from it.
  void moved(bool out, uint64_t bytes, Duration took);
  void move_failed() { failed_moves_.add(); }
  void tail_requests(size_t count) { tail_requests_.set(static_cast<double>(count)); }
  void ended(std::string_view outcome) { ended_.with({outcome}).add(); }

 private:
  Gauge open_reservations_, prefilling_, ready_;
  Histogram queue_wait_, step_sequences_, handover_seconds_;
  Counter tokens_, prefill_tokens_, received_bytes_;
  Counter leases_expired_, commits_rejected_, preemptions_;
  CounterFamily reservations_, ended_;
  Counter mixed_steps_, overruns_;
  Gauge budget_share_;
  Gauge tail_requests_;
  Counter moves_out_, moves_back_, moved_bytes_, failed_moves_;
  Histogram move_seconds_;
};

}  // namespace tandem::decode
