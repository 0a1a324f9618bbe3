// What nodes say about requests.
#include <fmt/format.h>

#include <utility>

#include "router/dispatch/dispatcher_impl.h"

namespace tandem::router {

namespace {

AnswerToken from_message(const control::Token& token) {
  AnswerToken out{.id = token.id(), .logprob = token.logprob(), .top = {}};
  out.top.reserve(static_cast<size_t>(token.top_size()));
  for (const control::TokenLogprob& t : token.top()) out.top.emplace_back(t.token(), t.logprob());
  return out;
}

template <typename Repeated>
std::vector<AnswerToken> from_messages(const Repeated& tokens) {
  std::vector<AnswerToken> out;
  out.reserve(static_cast<size_t>(tokens.size()));
  for (const control::Token& token : tokens) out.push_back(from_message(token));
  return out;
}

std::optional<FinishKind> finish_kind(control::FinishReason reason) {
  switch (reason) {
    case control::FINISH_STOP:
      return FinishKind::kStop;
    case control::FINISH_LENGTH:
      return FinishKind::kLength;
    default:
      return std::nullopt;  // protobuf enumerations are open: a newer node may know more
  }
}

// The node's own words, under the code whose label it used.
Error from_failed(const std::string& node_id, const std::string& code, const std::string& detail) {
  const Outcome outcome = classify(code);
  ErrorCode mapped = ErrorCode::kInternal;
  if (outcome == Outcome::kNeutral) mapped = ErrorCode::kInvalidArgument;
  if (outcome == Outcome::kBackpressure) mapped = ErrorCode::kResourceExhausted;
  if (code == error_traits(ErrorCode::kTransport).label) mapped = ErrorCode::kTransport;
  if (code == error_traits(ErrorCode::kDeviceLost).label) mapped = ErrorCode::kDeviceLost;
  if (code == error_traits(ErrorCode::kUnsupported).label) mapped = ErrorCode::kUnsupported;
  return make_error(mapped, fmt::format("node {}: {}", node_id, detail.empty() ? code : detail));
}

}  // namespace

void Dispatcher::Impl::on_message(NodeHandle handle, const control::ToRouter& message) {
  Node* n = node(handle);
  if (n == nullptr) {
    ++counters_.messages_fenced;
    return;
  }
  switch (message.message_case()) {
    case control::ToRouter::kHeartbeat:
      on_heartbeat(*n, message.heartbeat());
      break;
    case control::ToRouter::kReserved:
      on_reserved(*n, message.reserved());
      break;
    case control::ToRouter::kPrefillDone:
      on_prefill_done(*n, message.prefill_done());
      break;
    case control::ToRouter::kTransferDone:
      on_transfer_done(*n, message.transfer_done());
      break;
    case control::ToRouter::kAdmitted:
      on_admitted(*n, message.admitted());
      break;
    case control::ToRouter::kTokens:
      on_tokens(*n, message.tokens());
      break;
    case control::ToRouter::kFailed:
      on_failed(*n, message.failed());
      break;
    case control::ToRouter::kHello:  // the session layer has had it
    case control::ToRouter::MESSAGE_NOT_SET:
      ++counters_.messages_stale;
      break;
  }
  pump();
}

void Dispatcher::Impl::record(Node& n, Outcome outcome) {
  if (!n.breaker.record(outcome, deps_.clock.now())) return;
  ++counters_.breaker_opened;
  deps_.observer.on_event(1, "breaker opened: no requests until a probe succeeds", n.id(), 0);
}

void Dispatcher::Impl::on_heartbeat(Node& n, const control::Heartbeat& beat) {
  if (!beat.transport_detail().empty()) n.hello.set_transport_detail(beat.transport_detail());
  const TimePoint now = deps_.clock.now();
  const double dt = to_seconds(now - n.last_beat);
  if (n.beat.tick() != 0 && dt > 1e-3 && beat.tokens_processed() >= n.beat.tokens_processed()) {
    const double rate =
        static_cast<double>(beat.tokens_processed() - n.beat.tokens_processed()) / dt;
    n.tokens_per_second = n.tokens_per_second * 0.5 + rate * 0.5;
  }
  if (beat.tick() != n.beat.tick() || beat.running() + beat.queued() == 0) n.last_progress = now;
  if (beat.draining() && !n.draining) {
    deps_.observer.on_event(0, "node is draining: it gets no new requests", n.id(), 0);
  }
  if (n.role == NodeRole::kPrefill && !n.introduced) {
    n.introduced = true;
    for (const auto& [handle, other] : nodes_) {
      if (other->role == NodeRole::kDecode) introduce(*other, n);
    }
  }
  n.draining = beat.draining();
  n.last_beat = now;
  n.beat = beat;
}

void Dispatcher::Impl::on_reserved(Node& n, const control::Reserved& message) {
  Request* r = request(message.request_id());
  if (r == nullptr || r->decode != n.handle || r->transfer != message.transfer_id() ||
      r->phase != Phase::kReserving) {
    ++counters_.messages_stale;
    if (message.granted()) {
      send_cancel(n.handle, message.request_id(), message.transfer_id(),
                  "the reservation came too late");
    }
    return;
  }
  if (!message.granted()) {
    const Outcome outcome = classify(message.error_code());
    record(n, outcome);
    const Error why = from_failed(n.id(), message.error_code(), message.error());
    if (outcome == Outcome::kNeutral) return fail(*r, why);
    return retry(*r, why, n.handle, n.handle, outcome == Outcome::kFailure);
  }
  const Node* prefill = node(r->prefill);
  const TimePoint now = deps_.clock.now();
  // Both legs or neither: the prefill node may have gone or failed others meanwhile.
  if (prefill == nullptr || prefill->draining ||
      prefill->breaker.state(now) == BreakerState::kOpen) {
    return retry(*r, make_error(ErrorCode::kUnavailable, "the prefill node is not usable any more"),
                 r->prefill, {}, false);
  }
  r->cached_tokens = message.cached_tokens();
  start_prefill(*r);
}

void Dispatcher::Impl::on_prefill_done(Node& n, const control::PrefillDone& message) {
  Request* r = request(message.request_id());
  if (r == nullptr || r->prefill != n.handle || r->transfer != message.transfer_id() ||
      (r->phase != Phase::kPrefilling && r->phase != Phase::kDecoding) || r->prefill_done) {
    ++counters_.messages_stale;
    return;
  }
  record(n, Outcome::kSuccess);
  r->prefill_done = true;
  r->prefill_done_at = deps_.clock.now();
  observe_prefill(n, *r, message.cached_tokens());
  discharge_prefill(*r);
  if (r->transfer != 0) counters_.prefill_compute_seconds += message.compute_seconds();
  AnswerUpdate update;
  update.cached_tokens = message.cached_tokens();
  update.prompt_scores = from_messages(message.prompt_scores());
  std::optional<FinishKind> finish = finish_kind(message.finish());
  std::vector<AnswerToken> tokens;
  if (message.has_first()) tokens.push_back(from_message(message.first()));
  if (r->transfer == 0 && !finish) finish = FinishKind::kLength;
  const uint32_t index = r->tokens_before_here;
  if (r->decode.value != 0 && !tokens.empty() && !r->first_token_here) {
    r->first_token_here = deps_.clock.now();
  }
  deliver(*r, std::move(tokens), index, finish, std::move(update));
}

void Dispatcher::Impl::on_transfer_done(Node& n, const control::TransferDone& message) {
  ++counters_.transfers;
  counters_.transfer_raw_bytes += message.raw_bytes();
  counters_.transfer_wire_bytes += message.wire_bytes();
  counters_.transfer_seconds += message.seconds();
  counters_.transfer_exposed_seconds += message.exposed_seconds();
  deps_.observer.on_transfer(message.seconds(), message.transport());
  if (!message.transport_detail().empty()) {
    n.hello.set_transport_detail(message.transport_detail());
  }
  Request* r = request(message.request_id());
  // The prefill node has nothing left of it; before that its death still matters.
  if (r != nullptr && r->prefill == n.handle && r->transfer == message.transfer_id() &&
      r->admitted) {
    r->prefill = {};
  }
}

void Dispatcher::Impl::mark_admitted(Request& r) {
  if (r.admitted) return;
  r.admitted = true;
  if (r.phase == Phase::kPrefilling && r.prefill_done) {
    deps_.observer.on_prefill_to_decode(to_seconds(deps_.clock.now() - r.prefill_done_at));
  }
  r.phase = Phase::kDecoding;
  r.deadline = deps_.clock.now() + options_.stall_timeout;
}

void Dispatcher::Impl::on_admitted(Node& n, const control::Admitted& message) {
  Request* r = request(message.request_id());
  if (r == nullptr || r->decode != n.handle || r->transfer != message.transfer_id() ||
      r->phase == Phase::kQueued || r->phase == Phase::kReserving) {
    ++counters_.messages_stale;
    send_cancel(n.handle, message.request_id(), message.transfer_id(), "the request has moved on");
    return;
  }
  mark_admitted(*r);
}

void Dispatcher::Impl::on_tokens(Node& n, const control::Tokens& message) {
  for (const control::TokenRun& run : message.runs()) on_run(n, run);
}

void Dispatcher::Impl::on_run(Node& n, const control::TokenRun& run) {
  Request* r = request(run.request_id());
  if (r == nullptr || r->decode != n.handle || r->phase == Phase::kQueued ||
      r->phase == Phase::kReserving) {
    ++counters_.messages_stale;
    if (r == nullptr && told_.insert(run.request_id()).second) {
      send_cancel(n.handle, run.request_id(), 0, "nobody waits for this answer");
    }
    return;
  }
  mark_admitted(*r);
  if (r->transfer == 0) {  // a local prefill is over with the first token
    observe_prefill(n, *r, run.cached_tokens());
    discharge_prefill(*r);
  }
  if (!r->first_token_here && run.tokens_size() > 0) r->first_token_here = deps_.clock.now();
  AnswerUpdate update;
  update.cached_tokens = run.cached_tokens();
  update.prompt_scores = from_messages(run.prompt_scores());
  deliver(*r, from_messages(run.tokens()), run.first_index(), finish_kind(run.finish()),
          std::move(update));
}

void Dispatcher::Impl::on_failed(Node& n, const control::Failed& message) {
  Request* r = request(message.request_id());
  const bool decode_leg = r != nullptr && r->decode == n.handle;
  const bool prefill_leg = r != nullptr && r->prefill == n.handle;
  if (r == nullptr || r->phase == Phase::kQueued || (!decode_leg && !prefill_leg) ||
      (message.transfer_id() != 0 && message.transfer_id() != r->transfer)) {
    ++counters_.messages_stale;
    return;
  }
  if (prefill_leg && !decode_leg && r->admitted && r->has_first())
    return;  // decode has all it needs
  const Outcome outcome = classify(message.code());
  record(n, outcome);
  const Error why = from_failed(n.id(), message.code(), message.detail());
  if (!message.retryable() && outcome != Outcome::kBackpressure) return fail(*r, why);
  // A refusal before the first step is waiting, not failing; afterwards attempts are counted.
  const bool counts = outcome != Outcome::kBackpressure || r->admitted || r->prefill_done;
  retry(*r, why, n.handle, n.handle, counts);
}

}  // namespace tandem::router
