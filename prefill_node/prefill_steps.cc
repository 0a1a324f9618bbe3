#include <algorithm>
#include <utility>

#include "common/node/packing.h"
#include "prefill_node/prefill_state.h"

namespace tandem::prefill {

bool PrefillScheduler::State::admit(Job& job) {
  // Scoring needs logits of every row, so nothing may be skipped then.
  auto blocks = deps.kv.acquire(job.task.tokens, !job.task.scores_prompt());
  if (!blocks)
    return false;  // blocks come back as sends complete or expire; FIFO order holds meanwhile
  job.kv = std::move(blocks->table);
  job.reused = blocks->reused_tokens;
  job.computed = job.reused;
  job.phase = JobPhase::kComputing;
  job.started = deps.clock.now();
  metrics.started(job.started - job.received);
  if (job.transfer.value == 0) return true;

  job.handover = node::handover(deps.kv.layout(), job.prompt, job.decode_cached);
  job.gate = std::make_shared<SendGate>();
  const auto status = deps.transport.open_send({.id = job.transfer,
                                                .receiver = job.decode_generation,
                                                .address = job.address,
                                                .layout = deps.kv.layout(),
                                                .pages = job.handover.pages,
                                                .tail_rows = job.handover.tail_rows,
                                                .deadline = job.deadline - job.started});
  if (!status) {
    fail(job, status.error(), Report::kYes);
    return true;
  }
  job.sending = true;
  sends.emplace(job.transfer, &job);
  return true;
}

// The prompts of the next step in FIFO order: those in work, then as many waiting ones as rows,
// sequences and blocks allow. A waiting prompt never overtakes another.
std::vector<Job*> PrefillScheduler::State::next_batch(uint32_t budget) {
  std::vector<Job*> batch;
  for (auto& job : jobs) {
    if (job->dead || job->phase != JobPhase::kComputing) continue;
    if (job->alone) return {job.get()};
    batch.push_back(job.get());
  }
  admit_waiting(batch, budget);
  return batch;
}

void PrefillScheduler::State::admit_waiting(std::vector<Job*>& batch, uint32_t budget) {
  uint32_t rows = 0;
  for (const Job* job : batch) rows += std::min(job->remaining(), options.chunk_tokens);
  for (auto& job : jobs) {
    if (job->dead || job->phase != JobPhase::kQueued) continue;
    if (rows >= budget || batch.size() >= options.max_sequences) return;
    if (!admit(*job)) return;
    if (job->dead) continue;
    batch.push_back(job.get());
    rows += std::min(job->remaining(), options.chunk_tokens);
  }
}

// Pages that stand once `rows` more rows are computed. The first step of a prompt also sends what
// came from the prefix index.
std::optional<PushPlan> PrefillScheduler::State::plan_push(Job& job, uint32_t rows) const {
  if (!job.sending) return std::nullopt;
  const uint32_t end = job.computed + rows;
  const bool last = end == job.prompt;
  const uint32_t whole = end / kv::kBlockTokens;
  const uint32_t first = job.handover.first_block;
  const uint32_t upto = last ? job.handover.pages : whole - std::min(whole, first);
  job.step_posted = job.posted;
  PushPlan plan{.transfer = job.transfer,
                .gate = job.gate,
                .first_page = job.posted,
                .blocks = {},
                .tail = std::nullopt};
  for (uint32_t page = job.posted; page < upto; ++page) {
    plan.blocks.push_back(job.kv.ids()[first + page]);
  }
  job.step_posted = std::max(job.posted, upto);
  if (last && job.handover.tail_rows > 0) plan.tail = job.kv.tail.slot();
  if (plan.blocks.empty() && !plan.tail) return std::nullopt;
  return plan;
}

void PrefillScheduler::State::start_work() {
  if (open_step != 0) return;
  const uint32_t budget =
      node::rows_within(options.step_target, throughput.per_second(), options.max_batch_tokens);
  const std::vector<Job*> batch = next_batch(budget);
  if (batch.empty()) return;
  std::vector<uint32_t> remaining;
  for (const Job* job : batch) remaining.push_back(job->alone ? job->step_rows : job->remaining());
  const auto rows =
      node::pack_rows(remaining, {.rows = budget, .chunk = std::min(budget, options.chunk_tokens)});

  node::StepJob step;
  step.id = next_step++;
  std::vector<PushPlan> plans;
  for (size_t i = 0; i < batch.size(); ++i) {
    Job& job = *batch[i];
    if (rows[i] == 0) continue;
    step.sequences.push_back(
        node::step_input(job.task, job.kv, job.computed, rows[i], job.task.scores_prompt()));
    if (auto plan = plan_push(job, rows[i])) plans.push_back(std::move(*plan));
    job.step_rows = rows[i];
    job.in_step = true;
    stepping.push_back(&job);
  }
  step.hook = make_push_hook(deps.transport, deps.kv.pages(), std::move(plans));
  open_step = step.id;
  if (deps.executor.submit(std::move(step))) return;
  // Only while shutting down: the executor has stopped.
  for (Job* job : std::exchange(stepping, {})) {
    job->in_step = false;
    fail(*job, make_error(ErrorCode::kUnavailable, "the engine has stopped"), Report::kYes);
  }
  open_step = 0;
}

void PrefillScheduler::State::finish_step(node::StepResult result) {
  if (result.id != open_step) return;
  open_step = 0;
  const std::vector<Job*> batch = std::exchange(stepping, {});
  uint32_t rows = 0;
  for (Job* job : batch) {
    job->in_step = false;
    rows += job->step_rows;
  }
  const Duration took = result.finished - result.started;
  metrics.step(batch.size(), rows, took);
  if (const auto error = result.failure(batch.size())) {
    metrics.step_failed();
    // One prompt must not take its company down: each is tried by itself, the culprit fails.
    for (Job* job : batch) {
      if (batch.size() == 1) fail(*job, *error, Report::kYes);
      job->alone = true;
    }
    return;
  }
  tokens_processed += rows;
  throughput.add(rows, to_seconds(took));
  for (size_t i = 0; i < batch.size(); ++i) {
    apply(*batch[i], std::move((*result.outputs)[i]), result);
  }
}

void PrefillScheduler::State::apply(Job& job, engine::SequenceOutput output,
                                    const node::StepResult& result) {
  job.computed += job.step_rows;
  job.posted = job.step_posted;
  job.alone = false;
  deps.kv.publish(std::span(job.task.tokens).first(job.computed), job.kv);
  if (job.dead) return;
  for (const auto& score : output.scores) job.scores.push_back(node::to_message(score));
  if (job.gate) {
    if (job.gate->error) return fail(job, *job.gate->error, Report::kYes);
    job.gate->layers_posted = 0;
  }
  if (job.remaining() == 0) finish_compute(job, std::move(output.token), result.finished);
}

Status PrefillScheduler::State::commit(Job& job, const control::Token* first) {
  control::Commit commit;
  commit.set_request_id(job.task.id.value);
  commit.set_tokens(job.prompt);
  if (first != nullptr) *commit.mutable_first() = *first;
  return deps.transport.post_commit(job.transfer, commit.SerializeAsString());
}

void PrefillScheduler::State::finish_compute(Job& job, std::optional<engine::SampledToken> token,
                                             TimePoint end) {
  job.compute_end = end;
  job.phase = JobPhase::kSending;
  control::ToRouter message;
  auto& done = *message.mutable_prefill_done();
  if (token) {
    const auto drawn = node::append_drawn(job.task, token->id, options.limits.max_context);
    if (drawn.kept) *done.mutable_first() = node::to_message(*token);
    done.set_finish(drawn.finish);
  } else {
    done.set_finish(control::FINISH_LENGTH);
  }
  if (job.sending) {
    // A commit without a token tells decode that the answer is already complete: it keeps the pages
    // for later prompts and expects nothing more.
    const bool goes_on = done.finish() == control::FINISH_NONE;
    if (auto status = commit(job, goes_on ? &done.first() : nullptr); !status) {
      fail(job, status.error(), Report::kYes);
      return;
    }
  }
  done.set_transfer_id(job.transfer.value);
  done.set_request_id(job.task.id.value);
  const auto wanted = std::min(job.scores.size(), job.task.prompt_tokens - 1);
  for (size_t i = 0; i < wanted; ++i) *done.add_prompt_scores() = std::move(job.scores[i]);
  done.set_cached_tokens(job.reused);
  done.set_queue_seconds(to_seconds(job.started - job.received));
  done.set_compute_seconds(to_seconds(end - job.started));
  send(std::move(message));
  metrics.prompt_done(job.prompt - job.reused, end - job.started);
  if (!job.sending) {
    job.dead = true;
    job.ok = true;
    metrics.ended("ok");
  }
}

}  // namespace tandem::prefill
