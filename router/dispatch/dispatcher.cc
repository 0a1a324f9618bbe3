#include "router/dispatch/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "router/dispatch/dispatcher_impl.h"

namespace tandem::router {

namespace {

constexpr size_t kAffinityBlocks = 1 << 16;
constexpr double kDrainRateSeconds = 5;  // time constant of the drain rate
constexpr uint32_t kRetryElsewhere = 1;  // seconds: another router, or this one's successor

// A node's own fit counts from so many answers on, and not when it idles on an old one.
constexpr uint64_t kAnswersToKnow = 8;
constexpr uint64_t kPromptsToKnow = 4;
constexpr auto kKnownFor = std::chrono::seconds(10);
// A sequence lengthens its neighbours' step by at least this share, measured or not, so that equal
// nodes share the work whatever noise their fits have.
constexpr double kLeastSlope = 0.02;

bool is_known(const Node& n) { return n.decode_time.observations() >= kAnswersToKnow; }

// What a node says of its prefill, in tokens per second; 0 when it says nothing sensible.
double reported_rate(const Node& n) {
  const double rate = n.beat.prefill_tokens_per_second();
  return rate >= 1 && rate <= 1e9 ? rate : 0;
}

// Seconds by which every further sequence lengthens the node's step.
double step_slope(const Node& n, const DecodeTimeModel& time) {
  return std::max(n.beat.step_seconds_per_sequence(), kLeastSlope * time.b());
}

}  // namespace

std::string_view to_string(NodeRole role) {
  switch (role) {
    case NodeRole::kPrefill:
      return "prefill";
    case NodeRole::kDecode:
      return "decode";
  }
  return {};
}

Dispatcher::Dispatcher(Deps deps, DispatchOptions options)
    : impl_(std::make_unique<Impl>(std::move(deps), std::move(options))) {}
Dispatcher::~Dispatcher() = default;
void Dispatcher::submit(std::vector<Submission> choices, std::shared_ptr<AnswerSink> sink) {
  impl_->submit(std::move(choices), std::move(sink));
}
void Dispatcher::cancel(RequestId id) { impl_->cancel(id, false); }
void Dispatcher::finish_early(RequestId id) { impl_->cancel(id, true); }
control::Welcome Dispatcher::on_node_connected(NodeHandle node, const control::Hello& hello) {
  return impl_->on_node_connected(node, hello);
}
void Dispatcher::on_message(NodeHandle node, const control::ToRouter& message) {
  impl_->on_message(node, message);
}
void Dispatcher::on_node_disconnected(NodeHandle node) {
  impl_->remove_node(node, "its connection broke");
}
void Dispatcher::tick() { impl_->tick(); }
void Dispatcher::drain() { impl_->drain(); }
void Dispatcher::cut() { impl_->cut(); }
size_t Dispatcher::open_requests() const { return impl_->open_requests(); }
std::shared_ptr<const ClusterSnapshot> Dispatcher::snapshot() const { return impl_->snapshot(); }
const DispatchCounters& Dispatcher::counters() const { return impl_->counters(); }

Dispatcher::Impl::Impl(Deps deps, DispatchOptions options)
    : deps_(std::move(deps)), options_(std::move(options)), affinity_(kAffinityBlocks) {
  drain_rate_at_ = deps_.clock.now();
  // Nodes remember recent transfer ids: a router that starts again must not repeat its
  // predecessor's.
  next_transfer_ = (options_.generation << 32) + 1;
}

void Dispatcher::Impl::submit(std::vector<Submission> choices, std::shared_ptr<AnswerSink> sink) {
  const TimePoint now = deps_.clock.now();
  counters_.submitted += choices.size();
  std::optional<Error> refusal;
  uint32_t wait = 0;
  if (draining_) {
    refusal = make_error(ErrorCode::kUnavailable, "the router is shutting down; ask another one");
    wait = kRetryElsewhere;
  } else if (!queue_.empty() && queue_.size() + choices.size() > options_.queue_capacity) {
    // An empty queue takes a request of any number of choices: the API bounds that.
    refusal = make_error(ErrorCode::kQueueFull,
                         fmt::format("the queue is full ({} of {} places taken); try again later",
                                     queue_.size(), options_.queue_capacity));
    wait = retry_after();
    counters_.rejected_full += choices.size();
  }
  for (Submission& choice : choices) {
    if (refusal) {
      ++counters_.rejected;
      AnswerUpdate update;
      update.id = choice.id;
      update.error = refusal;
      update.retry_after_seconds = wait;
      update.rejected = true;
      sink->on_update(std::move(update));
      continue;
    }
    auto r = std::make_unique<Request>();
    r->id = choice.id;
    r->spec = std::move(choice.spec);
    r->sink = sink;
    r->submitted = now;
    r->expires = now + options_.request_timeout;
    r->queue_until = now + options_.queue_deadline;
    queue_.push_back(choice.id);
    requests_[choice.id.value] = std::move(r);
  }
  pump();
}

void Dispatcher::Impl::cancel(RequestId id, bool satisfied) {
  Request* r = request(id.value);
  if (r == nullptr) return;
  cancel_legs(*r, {}, satisfied ? "a stop string was found" : "the client left");
  if (satisfied) {
    ++counters_.finished;
    lengths_.observe(static_cast<uint32_t>(r->answer.size()));
    if (Node* d = node(r->decode)) record(*d, Outcome::kSuccess);
  } else {
    ++counters_.cancelled;
  }
  erase(id);
  pump();
}

void Dispatcher::Impl::drain() { draining_ = true; }

void Dispatcher::Impl::cut() {
  const Error error =
      make_error(ErrorCode::kUnavailable,
                 "the router is shutting down before the answer is complete; send it again");
  std::vector<RequestId> open;
  for (const auto& [id, r] : requests_) open.push_back(r->id);
  for (RequestId id : open) {
    if (Request* r = request(id.value)) fail(*r, error, kRetryElsewhere);
  }
}

void Dispatcher::Impl::pump() {
  if (pumping_) return;
  pumping_ = true;
  while (!queue_.empty()) {
    Request* r = request(queue_.front().value);
    if (r == nullptr || r->phase != Phase::kQueued) {
      queue_.pop_front();
      continue;
    }
    if (dispatch(*r)) continue;
    if (!r->forced_local) break;
    fail_unplaced(*r);
  }
  pumping_ = false;
}

bool Dispatcher::Impl::avoided(const Request& r, NodeHandle handle) const {
  const TimePoint now = deps_.clock.now();
  return std::any_of(r.avoid.begin(), r.avoid.end(), [&](const auto& entry) {
    return entry.first == handle && now < entry.second;
  });
}

NodeView Dispatcher::Impl::view(const Node& n, const Request& r, uint32_t cached_blocks,
                                const DecodeTimeModel& guess) const {
  const TimePoint now = deps_.clock.now();
  NodeView v;
  v.usable = !n.draining && n.breaker.allows(now) && !avoided(r, n.handle) && !stuck(n, now);
  v.cached_tokens = cached_blocks * kBlockTokens;
  v.max_context = n.hello.max_context();
  v.open_prefill_tokens = n.open_prefill_tokens;
  v.max_batch_tokens = n.hello.max_batch_tokens();
  // What was learnt keeps counting; of a node that idled it is a claim, as its report is.
  v.prefill_rate = n.kept_pace > 0 ? n.kept_pace : reported_rate(n);
  v.rate_learnt = n.pace.observations() >= kPromptsToKnow && now - n.last_first_token <= kKnownFor;
  v.total_blocks = n.hello.kv_blocks();
  const uint64_t used = std::max<uint64_t>(n.beat.kv_blocks_used(), n.committed_blocks);
  v.free_blocks = static_cast<uint32_t>(v.total_blocks - std::min<uint64_t>(v.total_blocks, used));
  v.open_requests = n.open_requests;
  v.max_sequences = n.hello.max_sequences();
  // A node that is new or idles on an old fit counts as the best one does: so it is tried, at the
  // price of a few answers now and then, and one that was slow for a while is found out to be
  // quick.
  const bool stale = n.open_requests == 0 && now - n.last_answer > kKnownFor;
  const DecodeTimeModel& time = is_known(n) && !stale ? n.decode_time : guess;
  v.decode_a = time.a();
  v.decode_b = time.b();
  v.step_slope = step_slope(n, time);
  return v;
}

const DecodeTimeModel& Dispatcher::Impl::best_decode_time() const {
  const DecodeTimeModel* best = nullptr;
  for (const auto& [handle, n] : nodes_) {
    if (n->role == NodeRole::kDecode && is_known(*n) &&
        (best == nullptr || n->decode_time.b() < best->b())) {
      best = &n->decode_time;
    }
  }
  return best == nullptr ? decode_time_ : *best;
}

void Dispatcher::Impl::observe_decode(Node& n, const Request& r) {
  const TimePoint now = deps_.clock.now();
  const double prompt = static_cast<double>(r.spec.prompt.size());
  const double tokens = static_cast<double>(r.answer.size()) - r.tokens_before_here - 1;
  const double seconds = to_seconds(now - *r.first_token_here);
  // The policy adds what neighbours cost, so the fit is of the time without them.
  const double neighbours = n.open_requests == 0 ? 0 : n.open_requests - 1;
  const double alone =
      std::max(seconds - step_slope(n, n.decode_time) * tokens * neighbours, seconds / 4);
  n.decode_time.observe(prompt, tokens, alone);
  decode_time_.observe(prompt, tokens, alone);
  n.last_answer = now;
}

void Dispatcher::Impl::observe_prefill(Node& n, const Request& r, uint32_t cached) {
  if (r.charged != n.handle) return;
  const TimePoint now = deps_.clock.now();
  const uint64_t computed = r.prefill_ahead - std::min<uint64_t>(r.prefill_ahead, cached);
  PrefillPaceModel pace = now - n.last_first_token > kKnownFor ? PrefillPaceModel{} : n.pace;
  if (!pace.observe(static_cast<double>(computed), to_seconds(now - r.charged_at))) return;
  n.pace = pace;
  n.last_first_token = now;
  if (n.pace.observations() >= kPromptsToKnow) n.kept_pace = n.pace.per_second();
}

bool Dispatcher::Impl::impossible(const Request& r, Error& why) const {
  uint32_t largest = 0;
  bool any = false;
  for (const auto& [handle, n] : nodes_) {
    if (n->role != NodeRole::kDecode) continue;
    any = true;
    largest = std::max(largest, n->hello.kv_blocks());
  }
  const uint32_t needed = blocks_for(uint64_t{r.total_tokens()} + (r.tokens_left() > 0 ? 1 : 0));
  if (!any || needed <= largest) return false;
  why = make_error(
      ErrorCode::kResourceExhausted,
      fmt::format("the request needs {} KV blocks of 16 tokens; the largest decode node has {}. "
                  "Send a shorter prompt, or raise kv.memory",
                  needed, largest));
  return true;
}

bool Dispatcher::Impl::dispatch(Request& r) {
  Error why;
  if (impossible(r, why)) {
    fail(r, std::move(why));
    return true;
  }
  std::vector<Node*> prefill_nodes;
  std::vector<Node*> decode_nodes;
  std::vector<NodeView> prefill;
  std::vector<NodeView> decode;
  std::array<uint32_t, PrefixAffinity::kSlots> depth{};
  const DecodeTimeModel& guess = best_decode_time();
  if (options_.prefix_affinity) depth = affinity_.match(r.spec.block_hashes);
  for (const auto& [handle, n] : nodes_) {
    const uint32_t cached = n->slot < depth.size() ? depth[n->slot] : 0;
    const bool is_prefill = n->role == NodeRole::kPrefill;
    (is_prefill ? prefill_nodes : decode_nodes).push_back(n.get());
    (is_prefill ? prefill : decode).push_back(view(*n, r, cached, guess));
  }
  r.predicted = lengths_.predict(static_cast<uint32_t>(r.answer.size()), r.tokens_left());
  RouteQuery query;
  query.prompt_tokens = r.total_tokens();
  query.predicted_new_tokens = r.predicted;
  query.max_new_tokens = r.tokens_left();
  query.decode_queue = options_.decode_queue;
  query.local_prefill_below = options_.local_prefill_below;
  query.force_local = r.forced_local;
  query.sequence = decisions_++;
  const Route route = deps_.policy.choose(query, prefill, decode);
  switch (route.kind) {
    case RouteKind::kWait:
      return false;
    case RouteKind::kRemote:
      start_remote(r, *prefill_nodes[route.prefill], *decode_nodes[route.decode]);
      break;
    case RouteKind::kPrefillOnly:
      start_prefill_only(r, *prefill_nodes[route.prefill]);
      break;
    case RouteKind::kLocalShort:
    case RouteKind::kLocalSooner:
    case RouteKind::kLocalOnly:
    case RouteKind::kLocalForced:
      start_local(r, *decode_nodes[route.decode], route.kind);
      break;
  }
  const TimePoint now = deps_.clock.now();
  note_dispatched(now);
  if (r.retries == 0) deps_.observer.on_queue_wait(to_seconds(now - r.submitted));
  return true;
}

void Dispatcher::Impl::fill_task(const Request& r, control::Task& task) const {
  task.set_request_id(r.id.value);
  task.mutable_tokens()->Reserve(static_cast<int>(r.total_tokens()));
  task.mutable_tokens()->Add(r.spec.prompt.begin(), r.spec.prompt.end());
  task.mutable_tokens()->Add(r.answer.begin(), r.answer.end());
  task.set_prompt_tokens(static_cast<uint32_t>(r.spec.prompt.size()));
  task.set_max_new_tokens(r.tokens_left());
  task.set_min_new_tokens(r.spec.min_new_tokens);
  task.mutable_stop_tokens()->Add(r.spec.stop_tokens.begin(), r.spec.stop_tokens.end());
  task.set_prompt_logprobs(r.scores_delivered ? -1 : r.spec.prompt_logprobs);
  task.set_predicted_new_tokens(r.predicted);
  const SamplingFields& s = r.spec.sampling;
  control::Sampling& out = *task.mutable_sampling();
  out.set_temperature(static_cast<float>(s.temperature));
  out.set_top_k(s.top_k);
  out.set_top_p(static_cast<float>(s.top_p));
  out.set_min_p(static_cast<float>(s.min_p));
  out.set_repetition_penalty(static_cast<float>(s.repetition_penalty));
  out.set_presence_penalty(static_cast<float>(s.presence_penalty));
  out.set_frequency_penalty(static_cast<float>(s.frequency_penalty));
  out.set_seed(r.spec.seed);
  out.set_logprobs(r.spec.logprobs);
  for (const auto& [token, bias] : s.logit_bias) {
    control::LogitBias& entry = *out.add_logit_bias();
    entry.set_token(token);
    entry.set_bias(bias);
  }
}

Duration Dispatcher::Impl::prefill_patience(const Node& n) const {
  // Slower than any machine this was tried on, until the node has told its rate.
  constexpr double kPessimisticRate = 50;
  // A decode node reports what prompts add to its steps, which its answers lengthen as well.
  double rate = reported_rate(n);
  if (rate == 0) rate = kPessimisticRate;
  if (n.kept_pace > 0) rate = std::min(rate, n.kept_pace);
  const double seconds = 3 * static_cast<double>(n.open_prefill_tokens) / std::max(rate, 1.0);
  return std::chrono::seconds(5) +
         from_seconds(std::min(seconds, to_seconds(options_.request_timeout)));
}

void Dispatcher::Impl::start_remote(Request& r, Node& prefill, Node& decode) {
  const TimePoint now = deps_.clock.now();
  r.phase = Phase::kReserving;
  r.prefill = prefill.handle;
  r.decode = decode.handle;
  r.transfer = next_transfer_++;
  r.deadline = now + options_.reserve_timeout;
  ++counters_.remote;
  prefill.breaker.on_dispatch(now);
  decode.breaker.on_dispatch(now);
  charge_prefill(r, prefill, r.total_tokens());
  charge_decode(r, decode);
  r.lease = std::max(options_.lease, prefill_patience(prefill));
  control::ToNode message;
  control::Reserve& reserve = *message.mutable_reserve();
  reserve.set_transfer_id(r.transfer);
  reserve.set_prefill_generation(prefill.hello.generation());
  reserve.set_lease_ms(static_cast<uint32_t>(r.lease / std::chrono::milliseconds(1)));
  fill_task(r, *reserve.mutable_task());
  deps_.send(decode.handle, message);
}

void Dispatcher::Impl::start_prefill(Request& r) {
  Node* prefill = node(r.prefill);
  Node* decode = node(r.decode);
  r.phase = Phase::kPrefilling;
  r.deadline = deps_.clock.now() + r.lease;
  control::ToNode message;
  control::Prefill& order = *message.mutable_prefill();
  order.set_transfer_id(r.transfer);
  order.set_deadline_ms(static_cast<uint32_t>(r.lease / std::chrono::milliseconds(1)));
  fill_task(r, *order.mutable_task());
  if (decode != nullptr) {
    order.set_decode_node(decode->id());
    order.set_decode_generation(decode->hello.generation());
    order.set_decode_transport(decode->hello.transport());
    order.set_decode_address(decode->hello.transport_address());
    order.set_cached_tokens(r.cached_tokens);
    if (decode->slot < PrefixAffinity::kSlots) affinity_.insert(r.spec.block_hashes, decode->slot);
  }
  if (prefill->slot < PrefixAffinity::kSlots) affinity_.insert(r.spec.block_hashes, prefill->slot);
  deps_.send(prefill->handle, message);
}

void Dispatcher::Impl::start_prefill_only(Request& r, Node& prefill) {
  r.prefill = prefill.handle;
  r.decode = {};
  r.transfer = 0;
  begin_attempt(r);
  prefill.breaker.on_dispatch(deps_.clock.now());
  charge_prefill(r, prefill, r.total_tokens());
  r.lease = std::max(options_.lease, prefill_patience(prefill));
  start_prefill(r);
}

void Dispatcher::Impl::start_local(Request& r, Node& decode, RouteKind kind) {
  const TimePoint now = deps_.clock.now();
  switch (kind) {
    case RouteKind::kLocalShort:
      ++counters_.local_short;
      break;
    case RouteKind::kLocalSooner:
      ++counters_.local_predicted;
      break;
    case RouteKind::kLocalOnly:
      ++counters_.local_no_prefill;
      break;
    case RouteKind::kLocalForced:
      ++counters_.failovers_local;
      deps_.observer.on_event(0, "queue deadline passed: prefilling on the decode node",
                              decode.id(), r.id.value);
      break;
    case RouteKind::kWait:
    case RouteKind::kRemote:
    case RouteKind::kPrefillOnly:
      break;
  }
  r.phase = Phase::kDecoding;
  r.decode = decode.handle;
  r.prefill = {};
  r.transfer = 0;
  decode.breaker.on_dispatch(now);
  charge_prefill(r, decode, r.total_tokens());
  charge_decode(r, decode);
  r.deadline = now + std::max(options_.stall_timeout, prefill_patience(decode));
  if (decode.slot < PrefixAffinity::kSlots) affinity_.insert(r.spec.block_hashes, decode.slot);
  control::ToNode message;
  fill_task(r, *message.mutable_generate()->mutable_task());
  deps_.send(decode.handle, message);
}

void Dispatcher::Impl::note_dispatched(TimePoint now) {
  const double dt = to_seconds(now - drain_rate_at_);
  drain_rate_ = drain_rate_ * std::exp(-dt / kDrainRateSeconds) + 1 / kDrainRateSeconds;
  drain_rate_at_ = now;
}

uint32_t Dispatcher::Impl::retry_after() const {
  const double dt = to_seconds(deps_.clock.now() - drain_rate_at_);
  const double rate = drain_rate_ * std::exp(-dt / kDrainRateSeconds);
  // Without any dispatch lately there is no rate: one request in five seconds is a guess.
  const double seconds = static_cast<double>(queue_.size()) / std::max(rate, 0.2);
  return static_cast<uint32_t>(std::clamp(std::ceil(seconds), 1.0, 60.0));
}

}  // namespace tandem::router
