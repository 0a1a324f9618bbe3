// Progress and endings of one request.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "router/dispatch/dispatcher_impl.h"

namespace tandem::router {

namespace {

// Pauses before a node is tried again for the same request.
constexpr Duration kAfterBackpressure = std::chrono::milliseconds(50);
constexpr Duration kAfterFailure = std::chrono::milliseconds(250);
// Past the queue deadline there is no second question to the same node.
constexpr Duration kNever = std::chrono::hours(24);
// Tokens that may overtake the first one; an answer grows by one a step, so this is seconds of
// decode.
constexpr size_t kMaxEarlyRuns = 4096;
constexpr size_t kMaxTold = 4096;

}  // namespace

void Dispatcher::Impl::deliver(Request& r, std::vector<AnswerToken> tokens, uint32_t first_index,
                               std::optional<FinishKind> finish_kind, AnswerUpdate update) {
  const auto have = static_cast<uint32_t>(r.answer.size());
  const uint32_t end = first_index + static_cast<uint32_t>(tokens.size());
  if (finish_kind) {
    r.early_finish = finish_kind;
    r.early_finish_at = end;
  }
  if (first_index > have) {
    if (r.early.size() < kMaxEarlyRuns) {
      std::vector<AnswerToken>& run = r.early[first_index];
      if (tokens.size() > run.size()) run = std::move(tokens);  // runs may overlap: keep the longer
    }
    tokens.clear();
  } else if (first_index < have) {
    const size_t repeated = std::min<size_t>(have - first_index, tokens.size());
    counters_.tokens_repeated += repeated;
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(repeated));
  }
  update.tokens = std::move(tokens);
  for (const AnswerToken& t : update.tokens) r.answer.push_back(t.id);
  while (!r.early.empty() && r.early.begin()->first <= r.answer.size()) {  // the gap has closed
    auto& [index, run] = *r.early.begin();
    for (size_t i = r.answer.size() - index; i < run.size(); ++i) {
      r.answer.push_back(run[i].id);
      update.tokens.push_back(std::move(run[i]));
    }
    r.early.erase(r.early.begin());
  }
  // A node that runs past what was asked for is cut; the request ends by its own limit.
  const size_t limit = r.spec.max_new_tokens;
  if (r.answer.size() > limit) {
    const size_t extra = std::min(r.answer.size() - limit, update.tokens.size());
    r.answer.resize(r.answer.size() - extra);
    update.tokens.resize(update.tokens.size() - extra);
    r.early_finish = FinishKind::kLength;
    r.early_finish_at = static_cast<uint32_t>(r.answer.size());
  }
  if (!update.prompt_scores.empty()) {
    if (r.scores_delivered) {
      update.prompt_scores.clear();
    } else {
      r.scores_delivered = true;
    }
  }
  const bool done = r.early_finish && r.answer.size() >= r.early_finish_at;
  if (!update.tokens.empty() || done) {
    r.deadline =
        r.phase == Phase::kDecoding ? deps_.clock.now() + options_.stall_timeout : r.deadline;
  }
  if (update.tokens.empty() && update.prompt_scores.empty() && !done) return;
  if (done) update.finish = r.early_finish;
  update.id = r.id;
  r.sink->on_update(std::move(update));
  if (done) finish(r);
}

void Dispatcher::Impl::finish(Request& r) {
  ++counters_.finished;
  lengths_.observe(static_cast<uint32_t>(r.answer.size()));
  if (Node* d = node(r.decode)) {
    if (r.first_token_here) observe_decode(*d, r);
    record(*d, Outcome::kSuccess);
    // The first token was the last: the reservation is not needed.
    if (!r.admitted && r.transfer != 0)
      send_cancel(r.decode, r.id.value, r.transfer, "finished at its first token");
  }
  if (node(r.prefill) != nullptr) {
    if (!r.admitted && r.transfer != 0)
      send_cancel(r.prefill, r.id.value, r.transfer, "finished at its first token");
  }
  erase(r.id);
}

void Dispatcher::Impl::fail_unplaced(Request& r) {
  std::string detail = fmt::format("no node could take the request within {} s",
                                   to_seconds(r.queue_until - r.submitted));
  if (r.last_error) detail += ": " + r.last_error->detail;
  fail(r, make_error(ErrorCode::kUnavailable, std::move(detail)), retry_after());
}

void Dispatcher::Impl::fail(Request& r, Error error, uint32_t retry_after_seconds) {
  ++counters_.failed;
  cancel_legs(r, {}, error.detail);
  AnswerUpdate update;
  update.id = r.id;
  update.error = std::move(error);
  update.retry_after_seconds = retry_after_seconds;
  r.sink->on_update(std::move(update));
  erase(r.id);
}

void Dispatcher::Impl::retry(Request& r, const Error& why, NodeHandle blame, NodeHandle gone,
                             bool counts) {
  const TimePoint now = deps_.clock.now();
  r.last_error = why;
  cancel_legs(r, gone, why.detail);
  release_charges(r);
  if (blame.value != 0) {
    Duration pause = counts ? kAfterFailure : kAfterBackpressure;
    if (r.forced_local) pause = kNever;
    std::erase_if(r.avoid, [&](const auto& entry) { return entry.first == blame; });
    r.avoid.emplace_back(blame, now + pause);
  }
  if (counts) {
    ++r.retries;
    if (r.retries > options_.max_retries) {
      Error error = why;
      error.detail = fmt::format("gave up after {} attempts: {}", r.retries, why.detail);
      return fail(r, std::move(error));
    }
    ++counters_.retries;
    if (!r.answer.empty()) ++counters_.resumes;
    deps_.observer.on_event(
        1, fmt::format("trying again ({} tokens kept): {}", r.answer.size(), why.detail), {},
        r.id.value);
    // A new attempt has its own patience; backpressure leaves the clock running.
    r.forced_local = false;
    r.queue_until = now + (r.answer.empty() ? options_.queue_deadline : options_.resume_deadline);
  }
  r.phase = Phase::kQueued;
  r.decode = {};
  r.prefill = {};
  r.transfer = 0;
  r.admitted = false;
  r.prefill_done = false;
  r.early.clear();
  r.early_finish.reset();
  r.first_token_here.reset();
  queue_.push_front(r.id);
}

void Dispatcher::Impl::charge_prefill(Request& r, Node& n, uint64_t tokens) {
  discharge_prefill(r);
  r.prefill_charge = tokens;
  r.charged = n.handle;
  n.open_prefill_tokens += tokens;
  r.prefill_ahead = n.open_prefill_tokens;
  r.charged_at = deps_.clock.now();
  if (n.role == NodeRole::kPrefill) ++n.open_requests;
}

void Dispatcher::Impl::discharge_prefill(Request& r) {
  if (Node* n = node(r.charged)) {
    n->open_prefill_tokens -= std::min(n->open_prefill_tokens, r.prefill_charge);
    if (n->role == NodeRole::kPrefill && n->open_requests > 0) --n->open_requests;
  }
  r.prefill_charge = 0;
  r.charged = {};
}

void Dispatcher::Impl::charge_decode(Request& r, Node& n) {
  r.block_charge = blocks_for(uint64_t{r.total_tokens()} + r.predicted);
  n.committed_blocks += r.block_charge;
  ++n.open_requests;
  begin_attempt(r);
}

void Dispatcher::Impl::begin_attempt(Request& r) {
  r.first_token_here.reset();
  r.tokens_before_here = static_cast<uint32_t>(r.answer.size());
  r.admitted = false;
  r.prefill_done = false;
  r.cached_tokens = 0;
}

void Dispatcher::Impl::release_charges(Request& r) {
  discharge_prefill(r);
  if (r.block_charge == 0) return;
  if (Node* d = node(r.decode)) {
    d->committed_blocks -= std::min<uint64_t>(d->committed_blocks, r.block_charge);
    if (d->open_requests > 0) --d->open_requests;
  }
  r.block_charge = 0;
}

void Dispatcher::Impl::send_cancel(NodeHandle handle, uint64_t request_id, uint64_t transfer,
                                   std::string_view reason) {
  control::ToNode message;
  control::Cancel& cancel = *message.mutable_cancel();
  cancel.set_request_id(request_id);
  cancel.set_transfer_id(transfer);
  cancel.set_reason(std::string(reason));
  deps_.send(handle, message);
}

void Dispatcher::Impl::cancel_legs(Request& r, NodeHandle except, std::string_view reason) {
  for (NodeHandle leg : {r.prefill, r.decode}) {
    if (leg.value == 0 || leg == except || node(leg) == nullptr) continue;
    // Prefill has heard of the request only once Prefill was sent.
    if (leg == r.prefill && r.phase == Phase::kReserving) continue;
    send_cancel(leg, r.id.value, 0, reason);
  }
}

void Dispatcher::Impl::erase(RequestId id) {
  const auto it = requests_.find(id.value);
  if (it == requests_.end()) return;
  release_charges(*it->second);
  if (it->second->phase == Phase::kQueued) std::erase(queue_, id);
  requests_.erase(it);
  if (told_.size() > kMaxTold) told_.clear();
  told_.insert(id.value);  // what is still on its way from the nodes needs no second Cancel
}

}  // namespace tandem::router
