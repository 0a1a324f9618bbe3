#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/node/rate.h"
#include "common/node/role_state.h"
#include "prefill_node/prefill_job.h"
#include "prefill_node/prefill_metrics.h"
#include "prefill_node/prefill_scheduler.h"

namespace tandem::prefill {

// Insides of PrefillScheduler; control thread only. Life cycle in prefill_scheduler.cc, steps in
// prefill_steps.cc.
struct PrefillScheduler::State final : node::RoleState {
  State(const Deps& d, const PrefillOptions& o);

  // ---- life cycle
  void prefill(const control::Prefill& message) override;
  [[nodiscard]] Status check(const control::Prefill& message, const Job& job) const;
  void cancel(const control::Cancel& message) override;
  void peer_here(const control::PeerHere& message) override;
  void peer_gone(const control::PeerGone& message) override;
  void finish_send(TransferId id, const transport::SendStats& stats);
  void fail_send(TransferId id, const Error& error);
  // Ends the job as soon as device and transport let go of it; reports to the router if asked.
  void fail(Job& job, const Error& error, Report report);
  void drop_everything(const Error& why) override;
  void sweep() override;
  void drop_ended() override;

  // ---- steps
  void start_work() override;
  void admit_waiting(std::vector<Job*>& batch, uint32_t budget);
  [[nodiscard]] bool admit(Job& job);
  [[nodiscard]] std::vector<Job*> next_batch(uint32_t budget);
  [[nodiscard]] std::optional<PushPlan> plan_push(Job& job, uint32_t rows) const;
  void finish_step(node::StepResult result);
  void apply(Job& job, engine::SequenceOutput output, const node::StepResult& result);
  void finish_compute(Job& job, std::optional<engine::SampledToken> token, TimePoint end);
  [[nodiscard]] Status commit(Job& job, const control::Token* first);

  void update_gauges() override;

  Deps deps;
  PrefillOptions options;
  PrefillMetrics metrics;
  std::vector<std::unique_ptr<Job>> jobs;  // FIFO: in order of arrival
  std::map<TransferId, Job*> sends;        // open transfers
  uint64_t next_step = 1;
  uint64_t open_step = 0;  // 0: none
  std::vector<Job*> stepping;
  uint64_t tokens_processed = 0;
  uint64_t raw_bytes = 0;
  uint64_t wire_bytes = 0;
  node::Throughput throughput;
};

}  // namespace tandem::prefill
