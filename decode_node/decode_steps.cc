#include <algorithm>
#include <utility>

#include "common/node/handover.h"
#include "common/node/packing.h"
#include "decode_node/batch_policy.h"
#include "decode_node/decode_state.h"

namespace tandem::decode {

std::vector<Sequence*> DecodeScheduler::State::ranked_holders(LaneId lane) const {
  std::vector<Sequence*> holders;
  std::vector<BatchCandidate> candidates;
  const TimePoint now = deps.clock.now();
  for (const auto& s : sequences) {
    if (s->dead || s->lane != lane) continue;
    if (s->phase != Phase::kReady && s->phase != Phase::kPrefilling) continue;
    const Duration waited =
        s->age.value() + (s->phase == Phase::kReady ? now - s->ready_since : Duration{0});
    holders.push_back(s.get());
    candidates.push_back({.generated = s->generated(), .waited = waited, .arrival = s->arrival});
  }
  std::vector<Sequence*> ranked;
  ranked.reserve(holders.size());
  for (const size_t i : rank_batch(candidates, options.queue_ageing)) ranked.push_back(holders[i]);
  return ranked;
}

// The ready sequences of the lane's next step, each with room for its next row.
std::vector<Sequence*> DecodeScheduler::State::decode_rows(LaneId lane) {
  const std::vector<Sequence*> ranked = ranked_holders(lane);
  const size_t most = std::min(options.max_sequences, options.max_batch_tokens);
  std::vector<Sequence*> rows;
  for (Sequence* s : ranked) {
    if (rows.size() == most) break;
    if (s->phase == Phase::kReady && grow(*s, ranked)) rows.push_back(s);
  }
  return rows;
}

std::vector<Sequence*> DecodeScheduler::State::prefilling(LaneId lane) const {
  std::vector<Sequence*> result;
  for (const auto& s : sequences) {
    if (!s->dead && s->lane == lane && s->phase == Phase::kPrefilling) result.push_back(s.get());
  }
  return result;
}

void DecodeScheduler::State::add_to_step(node::StepJob& step, Sequence& s, uint32_t rows) {
  step.sequences.push_back(
      node::step_input(s.task, s.kv, s.computed, rows, s.task.scores_prompt() && !s.drawn));
  s.step_rows = rows;
  s.in_step = true;
  if (s.phase == Phase::kReady) {
    const Duration waited = deps.clock.now() - s.ready_since;
    s.waited += waited;
    s.age.waited(waited);
    s.age.ran();
  }
  lanes[static_cast<size_t>(s.lane)].stepping.push_back(&s);
}

void DecodeScheduler::State::start_work() {
  if (lanes.front().open_step == 0) admit_waiting();
  start_moves();
  for (size_t lane = 0; lane < lanes.size(); ++lane) start_step(static_cast<LaneId>(lane));
}

// How many rows of prompts, the first of which goes on at `start`, may join `decoding` rows. With
// nobody decoding they take the whole step.
uint32_t DecodeScheduler::State::prompt_rows(uint32_t decoding, uint32_t start) const {
  const uint32_t room = options.max_batch_tokens - decoding;
  if (decoding == 0)
    return node::rows_within(options.prefill_target, prefill_throughput.per_second(), room);
  const double per_row = step_model.seconds_per_prompt_row(start);
  return node::rows_within(step_budget.for_prompts(step_model.decode_seconds(decoding)),
                           per_row > 0 ? 1 / per_row : 0, std::min(room, options.chunk_tokens));
}

// Every decode row that may go, and beside them at most a chunk of prompts, so that the time
// between two tokens of a running request stays bounded whatever arrives.
void DecodeScheduler::State::start_step(LaneId id) {
  LaneState& lane = lanes[static_cast<size_t>(id)];
  if (lane.open_step != 0) return;
  node::StepJob step;
  step.id = next_step++;
  const auto alone = std::ranges::find_if(sequences, [&](const auto& s) {
    return !s->dead && s->alone && s->lane == id && !s->kv.empty();
  });
  if (alone != sequences.end()) {
    Sequence& s = **alone;
    if (s.phase == Phase::kPrefilling || grow(s, ranked_holders(id))) {
      add_to_step(step, s, std::min(s.remaining(), s.step_rows));
    } else {
      // It must not hold up the others; its turn comes again with new blocks.
      if (!s.kv.empty()) preempt(s);
    }
  }
  if (step.sequences.empty()) {
    for (Sequence* s : decode_rows(id)) add_to_step(step, *s, 1);
    const auto decoding = static_cast<uint32_t>(step.sequences.size());
    const std::vector<Sequence*> prompts = prefilling(id);
    std::vector<uint32_t> remaining;
    for (const Sequence* s : prompts) remaining.push_back(s->remaining());
    const uint32_t budget = prompt_rows(decoding, prompts.empty() ? 0 : prompts.front()->computed);
    const auto rows = node::pack_rows(remaining, {.rows = budget, .chunk = budget});
    // As many as may decode: engines are made for steps of so many sequences.
    uint32_t joined = 0;
    for (size_t i = 0; i < prompts.size() && joined < options.max_sequences; ++i) {
      if (rows[i] == 0) continue;
      add_to_step(step, *prompts[i], rows[i]);
      ++joined;
    }
  }
  if (step.sequences.empty()) return;
  lane.open_step = step.id;
  if (lane.at.executor.submit(std::move(step))) return;
  // Only while shutting down: the executor has stopped.
  lane.open_step = 0;
  for (Sequence* s : std::exchange(lane.stepping, {})) {
    s->in_step = false;
    fail(*s, make_error(ErrorCode::kUnavailable, "the engine has stopped"), Report::kYes);
  }
}

void DecodeScheduler::State::finish_step(node::StepResult result) {
  const auto lane =
      std::ranges::find_if(lanes, [&](const auto& l) { return l.open_step == result.id; });
  if (lane == lanes.end()) return;
  lane->open_step = 0;
  const std::vector<Sequence*> batch = std::exchange(lane->stepping, {});
  StepModel::Load load;
  for (Sequence* s : batch) {
    s->in_step = false;
    s->ready_since = deps.clock.now();
    if (s->phase == Phase::kReady) {
      ++load.decoding;
    } else {
      load.prompt_rows += s->step_rows;
      load.attended += double{1} * s->step_rows * s->computed;
    }
  }
  const Duration took = result.finished - result.started;
  const auto id = static_cast<LaneId>(lane - lanes.begin());
  if (id == LaneId::kDevice) metrics.step(load.decoding, load.prompt_rows, took);
  if (const auto error = result.failure(batch.size())) {
    metrics.step_failed();
    // One request must not take its company down: each is tried by itself, the culprit fails.
    for (Sequence* s : batch) {
      if (batch.size() == 1) fail(*s, *error, Report::kYes);
      s->alone = true;
    }
    return;
  }
  if (id == LaneId::kDevice) observe_step(load, took);
  control::ToRouter message;
  for (size_t i = 0; i < batch.size(); ++i) {
    apply(*batch[i], std::move((*result.outputs)[i]), *message.mutable_tokens());
  }
  if (message.tokens().runs_size() > 0) send(std::move(message));
}

// What the router predicts with is the device's speed.
void DecodeScheduler::State::observe_step(const StepModel::Load& load, Duration took) {
  step_model.add(load, to_seconds(took));
  if (load.prompt_rows == 0) {
    step_seconds.add(to_seconds(took));
    step_cost.add(load.decoding, to_seconds(took));
    return;
  }
  double decode_part = 0;
  if (load.decoding > 0) {
    step_budget.took(took);
    metrics.mixed_step(took > options.mixed_target, step_budget.share());
    decode_part = std::min(step_model.decode_seconds(load.decoding), 0.9 * to_seconds(took));
  }
  prefill_throughput.add(load.prompt_rows, to_seconds(took) - decode_part);
}

void DecodeScheduler::State::apply(Sequence& s, engine::SequenceOutput output,
                                   control::Tokens& tokens) {
  s.computed += s.step_rows;
  s.alone = false;
  if (s.dead) return;
  for (const auto& score : output.scores) s.scores.push_back(node::to_message(score));
  if (s.remaining() > 0) return;  // more chunks to come
  if (s.phase == Phase::kPrefilling) {
    publish(s);  // prompts that are alike need not wait until this one ends
    if (!s.drawn) report_admitted(s);
    make_ready(s);
  }
  control::TokenRun run;
  run.set_request_id(s.task.id.value);
  run.set_first_index(s.generated());
  if (s.transfer.value == 0 && !s.reported) {
    s.reported = true;
    run.set_cached_tokens(s.prompt_cached);
    const size_t wanted = std::min(s.scores.size(), s.task.prompt_tokens - 1);
    for (size_t i = 0; i < wanted; ++i) *run.add_prompt_scores() = std::move(s.scores[i]);
  }
  s.drawn = true;
  if (output.token) {
    draw(s, *output.token, run);
  } else {
    run.set_finish(control::FINISH_LENGTH);  // nothing was to be drawn: the prompt was only scored
  }
  if (run.finish() != control::FINISH_NONE) {
    publish(s);
    s.ok = true;
    retire(s, "ok");
  }
  *tokens.add_runs() = std::move(run);
}

void DecodeScheduler::State::draw(Sequence& s, const engine::SampledToken& token,
                                  control::TokenRun& run) {
  const auto drawn = node::append_drawn(s.task, token.id, options.limits.max_context);
  run.set_finish(drawn.finish);
  if (!drawn.kept) return;
  *run.add_tokens() = node::to_message(token);
  ++tokens_generated;
  metrics.token();
}

void DecodeScheduler::State::make_ready(Sequence& s) {
  s.phase = Phase::kReady;
  s.ready_since = deps.clock.now();
}

void DecodeScheduler::State::update_gauges() {
  size_t counts[kPhases] = {};
  size_t in_tail = 0;
  for (const auto& s : sequences) {
    if (s->dead) continue;
    ++counts[static_cast<size_t>(s->phase)];
    in_tail += s->lane == LaneId::kTail ? 1 : 0;
  }
  metrics.state(
      counts[static_cast<size_t>(Phase::kReserved)],
      counts[static_cast<size_t>(Phase::kWaiting)] +
          counts[static_cast<size_t>(Phase::kPrefilling)],
      counts[static_cast<size_t>(Phase::kReady)] + counts[static_cast<size_t>(Phase::kMoving)],
      deps.device.kv.usage());
  if (deps.tail) metrics.tail_requests(in_tail);
  metrics.transport(deps.transport);
}

control::Heartbeat DecodeScheduler::heartbeat() const {
  const State& state = *state_;
  uint32_t ready = 0;
  uint32_t beside = 0;  // in the CPU tail, on the way to it or back
  uint32_t waiting = 0;
  uint32_t waiting_tokens = 0;
  for (const auto& s : state.sequences) {
    if (s->dead) continue;
    if (s->phase == Phase::kMoving || s->lane == LaneId::kTail)
      ++beside;
    else if (s->phase == Phase::kReady)
      ++ready;
    if (s->phase == Phase::kWaiting || s->phase == Phase::kPrefilling) {
      ++waiting;
      waiting_tokens += s->remaining();
    }
  }
  const uint32_t running = std::min(ready, state.options.max_sequences);
  control::Heartbeat h = state.heartbeat(state.deps.device.kv.usage());
  h.set_queued(waiting + ready - running);
  h.set_queued_tokens(waiting_tokens);
  h.set_running(running + beside);
  h.set_reservations(static_cast<uint32_t>(state.reserved.size()));
  h.set_tokens_processed(state.tokens_generated);
  h.set_prefill_tokens_per_second(state.prefill_throughput.per_second());
  h.set_step_seconds(state.step_seconds.value());
  h.set_step_seconds_per_sequence(state.step_cost.slope());
  h.set_transfer_wire_bytes(state.wire_bytes);
  return h;
}

}  // namespace tandem::decode
