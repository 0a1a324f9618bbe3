#include "prefill_node/prefill_scheduler.h"

#include <algorithm>
#include <utility>

#include "prefill_node/prefill_state.h"

namespace tandem::prefill {

PrefillScheduler::State::State(const Deps& d, const PrefillOptions& o)
    : node::RoleState(d.send), deps(d), options(o), metrics(deps.metrics) {
  metrics.transport(deps.transport);
}

Status PrefillScheduler::State::check(const control::Prefill& m, const Job& job) const {
  const auto blocks = node::blocks_for(job.task.tokens.size());
  if (blocks > deps.kv.usage().capacity) {
    return tandem::fail(ErrorCode::kPayloadTooLarge,
                        "the prompt needs " + std::to_string(blocks) +
                            " KV blocks, this node has " +
                            std::to_string(deps.kv.usage().capacity) + "; raise kv_memory",
                        "tokens");
  }
  if (m.transfer_id() == 0) return {};
  if (m.decode_transport() != deps.transport.name()) {
    return tandem::fail(ErrorCode::kMismatch,
                        "decode node " + m.decode_node() + " uses transport '" +
                            m.decode_transport() + "', this node '" +
                            std::string(deps.transport.name()) + "'",
                        "decode_transport");
  }
  if (m.cached_tokens() % kv::kBlockTokens != 0 ||
      m.cached_tokens() > node::reusable_tokens(job.task.tokens.size())) {
    return tandem::fail(ErrorCode::kInvalidArgument,
                        "cached_tokens is " + std::to_string(m.cached_tokens()) +
                            ": not whole blocks that leave a token to compute",
                        "cached_tokens");
  }
  return {};
}

void PrefillScheduler::State::prefill(const control::Prefill& m) {
  const TransferId transfer{m.transfer_id()};
  const RequestId request{m.task().request_id()};
  const auto open = std::ranges::find_if(jobs, [&](const auto& job) {
    return job->transfer == transfer && (job->task.id == request || transfer.value != 0);
  });
  if (open != jobs.end() && (*open)->session != session) {
    return report_failure(request, transfer,
                          make_error(ErrorCode::kUnavailable,
                                     "this transfer id of an earlier session is still closing"));
  }
  if (open != jobs.end() || has_ended(request, transfer)) {
    metrics.duplicate();
    return;
  }
  auto task = node::parse_task(m.task(), options.limits);
  if (!task) return report_failure(request, transfer, task.error());
  auto job = std::make_unique<Job>();
  job->task = std::move(*task);
  job->transfer = transfer;
  if (auto status = check(m, *job); !status) {
    return report_failure(request, transfer, status.error());
  }
  if (draining) {
    return report_failure(request, transfer,
                          make_error(ErrorCode::kUnavailable, "this prefill node is draining"));
  }
  const auto queued = std::ranges::count_if(
      jobs, [](const auto& j) { return j->phase == JobPhase::kQueued && !j->dead; });
  if (static_cast<size_t>(queued) >= options.queue_capacity) {
    return report_failure(request, transfer,
                          make_error(ErrorCode::kQueueFull,
                                     "this prefill node's queue is full (" +
                                         std::to_string(options.queue_capacity) + " prompts)"));
  }
  job->address = m.decode_address();
  job->decode_generation = Generation{m.decode_generation()};
  job->decode_cached = m.cached_tokens();
  job->prompt = static_cast<uint32_t>(job->task.tokens.size());
  job->session = session;
  job->received = deps.clock.now();
  job->deadline =
      job->received + (m.deadline_ms() == 0 ? options.default_deadline
                                            : Duration(std::chrono::milliseconds(m.deadline_ms())));
  jobs.push_back(std::move(job));
}

void PrefillScheduler::State::cancel(const control::Cancel& m) {
  for (auto& job : jobs) {
    if (job->task.id.value != m.request_id()) continue;
    if (m.transfer_id() != 0 && job->transfer.value != m.transfer_id()) continue;
    fail(*job, make_error(ErrorCode::kCancelled, m.reason()), Report::kNo);
  }
}

void PrefillScheduler::State::peer_here(const control::PeerHere& m) {
  // Where it cannot be reached, on_meet_failed() says so in the log, and the first transfer fails
  // and tells the router why.
  deps.transport.meet(m.node_id(), m.transport_address());
}

void PrefillScheduler::State::peer_gone(const control::PeerGone& m) {
  const Generation gone{m.generation()};
  for (auto& job : jobs) {
    if (job->transfer.value == 0 || job->decode_generation != gone) continue;
    fail(*job, make_error(ErrorCode::kUnavailable, "decode node " + m.node_id() + " is gone"),
         Report::kYes);
  }
  deps.transport.fence(gone);
  metrics.generation_fenced();
}

void PrefillScheduler::State::fail(Job& job, const Error& error, Report report) {
  if (job.dead) return;
  job.dead = true;
  metrics.ended(error_traits(error.code).label);
  if (job.sending) {
    job.gate->closed.store(true, std::memory_order_release);
    deps.transport.cancel_send(job.transfer, error.detail);
  }
  if (report == Report::kYes) report_failure(job.task.id, job.transfer, error);
}

void PrefillScheduler::State::finish_send(TransferId id, const transport::SendStats& stats) {
  const auto found = sends.find(id);
  if (found == sends.end()) return;
  Job& job = *found->second;
  sends.erase(found);
  job.sending = false;
  raw_bytes += stats.raw_bytes;
  wire_bytes += stats.wire_bytes;
  if (job.dead) return;
  const Duration exposed = std::max(stats.last_completion - job.compute_end, Duration{0});
  const Duration compute = job.compute_end - job.started;
  metrics.transfer(stats, exposed, compute);
  control::ToRouter message;
  auto& done = *message.mutable_transfer_done();
  done.set_transfer_id(id.value);
  done.set_request_id(job.task.id.value);
  done.set_raw_bytes(stats.raw_bytes);
  done.set_wire_bytes(stats.wire_bytes);
  done.set_seconds(to_seconds(stats.elapsed));
  done.set_exposed_seconds(to_seconds(exposed));
  done.set_transport(std::string(deps.transport.name()));
  done.set_transport_detail(deps.transport.detail());
  send(std::move(message));
  job.dead = true;  // done: nothing holds it any more
  job.ok = true;
  metrics.ended("ok");
}

void PrefillScheduler::State::fail_send(TransferId id, const Error& error) {
  const auto found = sends.find(id);
  if (found == sends.end()) return;
  Job& job = *found->second;
  sends.erase(found);
  job.sending = false;
  job.gate->closed.store(true, std::memory_order_release);
  fail(job, error, Report::kYes);
}

void PrefillScheduler::State::sweep() {
  const TimePoint now = deps.clock.now();
  for (auto& job : jobs) {
    if (job->dead || now < job->deadline) continue;
    static constexpr const char* kWhere[] = {"in the queue", "while computing", "while sending"};
    fail(*job,
         make_error(ErrorCode::kDeadlineExceeded, std::string("the prefill deadline ran out ") +
                                                      kWhere[static_cast<int>(job->phase)]),
         Report::kYes);
    metrics.deadline_exceeded();
  }
}

void PrefillScheduler::State::drop_ended() {
  std::erase_if(jobs, [this](const auto& job) {
    if (!job->releasable()) return false;
    remember_ended(job->task.id, job->transfer, job->session, job->ok);
    return true;
  });
}

void PrefillScheduler::State::update_gauges() {
  size_t queued = 0;
  size_t computing = 0;
  for (const auto& job : jobs) {
    queued += job->phase == JobPhase::kQueued ? 1 : 0;
    computing += job->phase == JobPhase::kComputing ? 1 : 0;
  }
  metrics.state(queued, computing, sends.size(), deps.kv.usage());
  metrics.transport(deps.transport);
}

void PrefillScheduler::State::drop_everything(const Error& why) {
  for (auto& job : jobs) fail(*job, why, Report::kNo);
}

PrefillScheduler::PrefillScheduler(const Deps& deps, const PrefillOptions& options)
    : state_(std::make_unique<State>(deps, options)) {}

PrefillScheduler::~PrefillScheduler() = default;

void PrefillScheduler::on_message(const control::ToNode& message) { state_->on_message(message); }

void PrefillScheduler::on_sent(TransferId id, const transport::SendStats& stats) {
  state_->finish_send(id, stats);
  state_->settle();
}

void PrefillScheduler::on_send_failed(TransferId id, const Error& error) {
  state_->fail_send(id, error);
  state_->settle();
}

void PrefillScheduler::on_step(node::StepResult result) {
  state_->finish_step(std::move(result));
  state_->settle();
}

void PrefillScheduler::on_disconnected() { state_->on_disconnected(); }

void PrefillScheduler::tick() { state_->tick(); }

void PrefillScheduler::drain() { state_->draining = true; }

bool PrefillScheduler::idle() const { return state_->jobs.empty(); }

control::Heartbeat PrefillScheduler::heartbeat() const {
  uint32_t queued = 0;
  uint32_t running = 0;
  uint32_t queued_tokens = 0;
  for (const auto& job : state_->jobs) {
    if (job->dead || job->phase == JobPhase::kSending) continue;
    queued_tokens += job->remaining();
    (job->phase == JobPhase::kQueued ? queued : running) += 1;
  }
  control::Heartbeat h = state_->heartbeat(state_->deps.kv.usage());
  h.set_queued(queued);
  h.set_queued_tokens(queued_tokens);
  h.set_running(running);
  h.set_tokens_processed(state_->tokens_processed);
  h.set_prefill_tokens_per_second(state_->throughput.per_second());
  h.set_transfer_raw_bytes(state_->raw_bytes);
  h.set_transfer_wire_bytes(state_->wire_bytes);
  return h;
}

}  // namespace tandem::prefill
