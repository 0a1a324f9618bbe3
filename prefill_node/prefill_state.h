#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/node/rate.h"
#include "common/node/recent_ids.h"
#include "prefill_node/prefill_job.h"
#include "prefill_node/prefill_metrics.h"
#include "prefill_node/prefill_scheduler.h"

namespace tandem::prefill {

// Insides of PrefillScheduler; control thread only. Life cycle in prefill_scheduler.cc, steps in
// prefill_steps.cc.
struct PrefillScheduler::State {
  State(Deps d, const PrefillOptions& o);

  // ---- life cycle
  void accept(const control::Prefill& message);
  [[nodiscard]] Status check(const control::Prefill& message, const Job& job) const;
  void cancel(const control::Cancel& message);
  void peer_gone(const control::PeerGone& message);
  void finish_send(TransferId id, const transport::SendStats& stats);
  void fail_send(TransferId id, const Error& error);
  // Ends the job as soon as device and transport let go of it; reports to the router if asked.
  enum class Report : uint8_t { kYes, kNo };
  void fail(Job& job, const Error& error, Report report);
  void report_failure(RequestId request, TransferId transfer, const Error& error);
  void sweep_deadlines();
  void drop_released();
  void settle();  // after every event: clear away what ended, begin what can begin

  // ---- steps
  void start_step();
  void admit_waiting(std::vector<Job*>& batch, uint32_t budget);
  [[nodiscard]] bool admit(Job& job);
  [[nodiscard]] std::vector<Job*> next_batch(uint32_t budget);
  [[nodiscard]] engine::SequenceInput input_of(Job& job, uint32_t rows) const;
  [[nodiscard]] std::optional<PushPlan> plan_push(Job& job, uint32_t rows) const;
  void finish_step(node::StepResult result);
  void apply(Job& job, engine::SequenceOutput output, const node::StepResult& result);
  void finish_compute(Job& job, std::optional<engine::SampledToken> token, TimePoint end);
  [[nodiscard]] Status commit(Job& job, const control::Token* first);

  void update_gauges();

  Deps deps;
  PrefillOptions options;
  PrefillMetrics metrics;
  std::vector<std::unique_ptr<Job>> jobs;  // FIFO: in order of arrival
  std::map<TransferId, Job*> sends;        // open transfers
  node::RecentIds ended;
  uint64_t next_step = 1;
  uint64_t open_step = 0;  // 0: none
  std::vector<Job*> stepping;
  uint64_t session = 0;  // grows with every lost router connection
  bool draining = false;
  uint64_t ticks = 0;
  uint64_t tokens_processed = 0;
  uint64_t raw_bytes = 0;
  uint64_t wire_bytes = 0;
  node::Throughput throughput;
};

}  // namespace tandem::prefill
