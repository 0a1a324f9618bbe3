#include "prefill_node/prefill_metrics.h"

namespace tandem::prefill {
namespace {

// Exposed transfer time over compute time.
constexpr double kRatioBuckets[] = {0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};

}  // namespace

PrefillMetrics::PrefillMetrics(MetricsRegistry& r)
    : node::RoleMetrics(r, "prefill"),
      queued_(r.gauge("tandem_prefill_queued_prompts", "Prompts that wait for their first step")),
      computing_(r.gauge("tandem_prefill_computing_prompts", "Prompts in the running batch")),
      sending_(r.gauge("tandem_prefill_open_transfers", "Transfers that are not yet complete")),
      wait_(r.histogram("tandem_prefill_queue_wait_seconds", "From receipt to the first step",
                        kLatencyBuckets)),
      step_rows_(
          r.histogram("tandem_prefill_step_rows", "Tokens in one forward pass", kCountBuckets)),
      step_sequences_(
          r.histogram("tandem_prefill_step_prompts", "Prompts in one forward pass", kCountBuckets)),
      compute_seconds_(r.histogram("tandem_prefill_compute_seconds",
                                   "From the first step of a prompt to its first token",
                                   kLatencyBuckets)),
      transfer_seconds_(r.histogram("tandem_prefill_transfer_seconds",
                                    "From the first page posted to the last one acknowledged",
                                    kShortLatencyBuckets)),
      exposed_seconds_(r.histogram("tandem_prefill_transfer_exposed_seconds",
                                   "Part of a transfer after its prompt was computed",
                                   kShortLatencyBuckets)),
      exposed_ratio_(r.histogram("tandem_prefill_transfer_exposed_ratio",
                                 "Exposed transfer time over compute time, per prompt",
                                 kRatioBuckets)),
      tokens_(r.counter("tandem_prefill_tokens_total", "Prompt tokens computed")),
      raw_bytes_(r.counter("tandem_prefill_transfer_raw_bytes_total",
                           "KV sent, as the same tokens take in bf16")),
      wire_bytes_(r.counter("tandem_prefill_transfer_wire_bytes_total",
                            "KV sent, as it went over the wire, headers included")),
      exposed_total_(r.counter("tandem_prefill_transfer_exposed_seconds_total",
                               "Sum of exposed transfer time")),
      compute_total_(r.counter("tandem_prefill_transfer_compute_seconds_total",
                               "Sum of compute time of the prompts that were transferred")),
      deadlines_(r.counter("tandem_prefill_deadlines_exceeded_total",
                           "Prompts dropped at their deadline, in whatever phase")),
      ended_(r.counters("tandem_prefill_prompts_total", "Prompts by outcome",
                        {node::outcome_label("ok")})) {}

void PrefillMetrics::state(size_t queued, size_t computing, size_t sending,
                           const node::KvUsage& usage) {
  queued_.set(static_cast<double>(queued));
  computing_.set(static_cast<double>(computing));
  sending_.set(static_cast<double>(sending));
  RoleMetrics::usage(usage);
}

void PrefillMetrics::started(Duration waited) { wait_.observe(to_seconds(waited)); }

void PrefillMetrics::step(size_t sequences, uint32_t rows, Duration took) {
  RoleMetrics::step(took);
  step_rows_.observe(rows);
  step_sequences_.observe(static_cast<double>(sequences));
}

void PrefillMetrics::prompt_done(uint32_t computed_tokens, Duration took) {
  tokens_.add(computed_tokens);
  compute_seconds_.observe(to_seconds(took));
}

void PrefillMetrics::transfer(const transport::SendStats& stats, Duration exposed,
                              Duration compute) {
  raw_bytes_.add(static_cast<double>(stats.raw_bytes));
  wire_bytes_.add(static_cast<double>(stats.wire_bytes));
  transfer_seconds_.observe(to_seconds(stats.elapsed));
  exposed_seconds_.observe(to_seconds(exposed));
  exposed_total_.add(to_seconds(exposed));
  compute_total_.add(to_seconds(compute));
  if (compute > Duration{0}) exposed_ratio_.observe(to_seconds(exposed) / to_seconds(compute));
}

}  // namespace tandem::prefill
