#include "decode_node/decode_metrics.h"

namespace tandem::decode {
namespace {

CounterFamily moves(MetricsRegistry& r) {
  return r.counters("tandem_decode_cpu_tail_moves_total",
                    "Requests moved to the CPU tail (out) and from it to the device (back)",
                    {Label{"direction", {"out", "back"}}});
}

}  // namespace

DecodeMetrics::DecodeMetrics(MetricsRegistry& r)
    : node::RoleMetrics(r, "decode"),
      open_reservations_(r.gauge("tandem_decode_open_reservations", "Leases on KV blocks")),
      prefilling_(r.gauge("tandem_decode_prefilling_requests",
                          "Requests that wait for, or are in, a prefill on this node")),
      ready_(r.gauge("tandem_decode_ready_requests", "Requests in the decode queue or generating")),
      queue_wait_(r.histogram("tandem_decode_queue_wait_seconds",
                              "Time a request was ready but not in a step's batch, at its end",
                              kLatencyBuckets)),
      step_sequences_(r.histogram("tandem_decode_batch_requests",
                                  "Requests that one forward pass generates a token for",
                                  kCountBuckets)),
      handover_seconds_(r.histogram("tandem_decode_transfer_seconds",
                                    "From a reservation to the request's place in the decode queue",
                                    kLatencyBuckets)),
      tokens_(r.counter("tandem_decode_tokens_total", "Tokens generated")),
      prefill_tokens_(r.counter("tandem_decode_prefill_tokens_total",
                                "Tokens prefilled on this node, recomputed ones included")),
      received_bytes_(r.counter("tandem_decode_transfer_wire_bytes_total",
                                "KV received, as it came over the wire")),
      leases_expired_(r.counter("tandem_decode_leases_expired_total",
                                "Reservations whose KV did not arrive in time")),
      commits_rejected_(r.counter("tandem_decode_commits_rejected_total",
                                  "Transfers whose commit frame contradicted the reservation")),
      preemptions_(r.counter("tandem_decode_preemptions_total",
                             "Requests that gave up their KV blocks to others")),
      reservations_(r.counters("tandem_decode_reservations_total", "Reservations by outcome",
                               {node::outcome_label("granted")})),
      ended_(r.counters("tandem_decode_requests_total", "Requests by outcome",
                        {node::outcome_label("ok")})),
      mixed_steps_(r.counter("tandem_decode_mixed_steps_total",
                             "Forward passes that generated tokens and prefilled prompts")),
      overruns_(r.counter("tandem_decode_mixed_steps_late_total",
                          "Of those, the ones that took longer than step_budget")),
      budget_share_(r.gauge("tandem_decode_step_budget_ratio",
                            "Part of step_budget that such steps are planned for, so that 99 in "
                            "100 keep to all of it")),
      tail_requests_(r.gauge("tandem_decode_cpu_tail_requests", "Requests in the CPU tail")),
      moves_out_(moves(r).with({"out"})),
      moves_back_(moves(r).with({"back"})),
      moved_bytes_(r.counter("tandem_decode_cpu_tail_bytes_total",
                             "KV copied between the device and the CPU tail")),
      failed_moves_(r.counter("tandem_decode_cpu_tail_failed_moves_total",
                              "Moves that failed; their requests go on where they were")),
      move_seconds_(r.histogram("tandem_decode_cpu_tail_seconds",
                                "Time of one move, in which its request generates nothing",
                                kShortLatencyBuckets)) {}

void DecodeMetrics::state(size_t reserved, size_t prefilling, size_t ready,
                          const node::KvUsage& usage) {
  open_reservations_.set(static_cast<double>(reserved));
  prefilling_.set(static_cast<double>(prefilling));
  ready_.set(static_cast<double>(ready));
  RoleMetrics::usage(usage);
}

void DecodeMetrics::admitted(const transport::ReceiveStats& stats, Duration took) {
  handover_seconds_.observe(to_seconds(took));
  received_bytes_.add(static_cast<double>(stats.wire_bytes));
}

void DecodeMetrics::moved(bool out, uint64_t bytes, Duration took) {
  (out ? moves_out_ : moves_back_).add();
  moved_bytes_.add(static_cast<double>(bytes));
  move_seconds_.observe(to_seconds(took));
}

void DecodeMetrics::step(uint32_t decode_rows, uint32_t prefill_rows, Duration took) {
  RoleMetrics::step(took);
  if (decode_rows > 0) step_sequences_.observe(decode_rows);
  prefill_tokens_.add(prefill_rows);
}

}  // namespace tandem::decode
