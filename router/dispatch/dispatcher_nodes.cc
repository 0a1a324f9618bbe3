// Nodes: admission, health, and the sweeps of tick().
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/proto/versions.h"
#include "router/dispatch/compatibility.h"
#include "router/dispatch/dispatcher_impl.h"

namespace tandem::router {

namespace {

// A second holder of a name may take it over once the first has missed this many heartbeats.
constexpr int kMissedBeats = 3;
// It is handed to every prefill node. UCX's take some hundred bytes for each network device.
constexpr size_t kMaxTransportAddress = 16 << 10;
constexpr Duration kRememberLost = std::chrono::seconds(60);
// Heartbeats that report work but no scheduler progress for this long: the node is stuck.
constexpr Duration kStuckAfter = std::chrono::seconds(20);

}  // namespace

Node* Dispatcher::Impl::node(NodeHandle handle) {
  const auto it = nodes_.find(handle.value);
  return it == nodes_.end() ? nullptr : it->second.get();
}

Request* Dispatcher::Impl::request(uint64_t id) {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

std::string Dispatcher::Impl::lasting_refusal(const control::Hello& hello) const {
  if (hello.protocol_version() != proto::kControlVersion) {
    return fmt::format("{} speaks control protocol {}, this router {}: run the same Tandem version",
                       hello.node_id(), hello.protocol_version(), proto::kControlVersion);
  }
  if (hello.role() != control::ROLE_PREFILL && hello.role() != control::ROLE_DECODE) {
    return fmt::format("{} names no role: it must be a prefill or a decode node", hello.node_id());
  }
  if (hello.node_id().empty()) return "the node has no name: set its `name` in the config";
  if (hello.generation() == 0) return hello.node_id() + " sends no generation";
  if (hello.max_context() == 0 || hello.kv_blocks() == 0) {
    return fmt::format("{} has room for nothing (context {}, {} KV blocks): raise kv.memory",
                       hello.node_id(), hello.max_context(), hello.kv_blocks());
  }
  if (hello.transport_address().size() > kMaxTransportAddress) {
    return fmt::format("the address of {}'s KV transport is {} bytes long, at most {} are taken",
                       hello.node_id(), hello.transport_address().size(), kMaxTransportAddress);
  }
  control::Hello own =
      hello;  // what the router itself knows of the model, the rest as the node says
  if (!options_.model_fingerprint.empty()) {
    own.mutable_compatibility()->set_model_fingerprint(options_.model_fingerprint);
  }
  if (!options_.tokenizer_hash.empty()) {
    own.mutable_compatibility()->set_tokenizer_hash(options_.tokenizer_hash);
  }
  if (options_.vocab != 0) own.set_vocab_size(options_.vocab);
  return difference(hello, own, "the router");
}

std::string Dispatcher::Impl::present_refusal(const control::Hello& hello) const {
  if (!hello.self_test_passed()) {
    return hello.node_id() + " has not passed its KV loopback self-test: see its own log";
  }
  for (const auto& [handle, other] : nodes_) {
    if (other->id() == hello.node_id()) continue;
    if (std::string text = difference(hello, other->hello, other->id()); !text.empty()) return text;
  }
  return {};
}

control::Welcome Dispatcher::Impl::on_node_connected(NodeHandle handle,
                                                     const control::Hello& hello) {
  const TimePoint now = deps_.clock.now();
  control::Welcome welcome;
  welcome.set_router_generation(options_.generation);
  welcome.set_heartbeat_ms(options_.heartbeat_ms);
  std::string reason = lasting_refusal(hello);
  welcome.set_lasting(!reason.empty());
  if (reason.empty()) reason = present_refusal(hello);
  NodeHandle replaced;
  for (const auto& [other_handle, other] : nodes_) {
    if (!reason.empty() || other->id() != hello.node_id()) continue;
    const Duration patience = std::chrono::milliseconds(options_.heartbeat_ms) * kMissedBeats;
    // The same process dialled again, or the old connection has gone quiet: the new one holds the
    // name.
    if (other->hello.generation() == hello.generation() || now - other->last_beat > patience) {
      replaced = other->handle;
    } else {
      reason = fmt::format("the name {} is taken by a live node: give this node another `name`",
                           hello.node_id());
    }
  }
  if (!reason.empty()) {
    ++counters_.handshakes_refused;
    deps_.observer.on_event(1, "node refused: " + reason, hello.node_id(), 0);
    welcome.set_admitted(false);
    welcome.set_reason(reason);
    return welcome;
  }
  if (replaced.value != 0) {
    fence(replaced, "it was replaced by a new connection of the same name");
  }
  auto n = std::make_unique<Node>();
  n->handle = handle;
  n->role = hello.role() == control::ROLE_PREFILL ? NodeRole::kPrefill : NodeRole::kDecode;
  n->hello = hello;
  n->connected = n->last_beat = n->last_progress = now;
  const auto free = std::find(slots_.begin(), slots_.end(), false);
  if (free != slots_.end()) {
    *free = true;
    n->slot = static_cast<size_t>(free - slots_.begin());
  }
  // Prefill nodes hear of the decode nodes that were there before with their own first heartbeat:
  // nothing goes out before Welcome.
  for (const auto& [other_handle, other] : nodes_) {
    if (n->role == NodeRole::kDecode && other->introduced) introduce(*n, *other);
  }
  nodes_[handle.value] = std::move(n);
  std::erase_if(lost_, [&](const auto& entry) { return entry.first.id == hello.node_id(); });
  welcome.set_admitted(true);
  deps_.observer.on_event(
      0,
      fmt::format("{} node admitted: {}, KV {}, transport {}",
                  hello.role() == control::ROLE_PREFILL ? "prefill" : "decode", hello.engine(),
                  hello.compatibility().kv_format(), hello.transport_detail()),
      hello.node_id(), 0);
  return welcome;
}

void Dispatcher::Impl::introduce(const Node& receiver, const Node& sender) const {
  control::ToNode message;
  message.mutable_peer_here()->set_node_id(receiver.id());
  message.mutable_peer_here()->set_transport(receiver.hello.transport());
  message.mutable_peer_here()->set_transport_address(receiver.hello.transport_address());
  deps_.send(sender.handle, message);
}

void Dispatcher::Impl::remove_node(NodeHandle handle, const std::string& why) {
  const auto it = nodes_.find(handle.value);
  if (it == nodes_.end()) return;
  const std::unique_ptr<Node> gone = std::move(it->second);
  nodes_.erase(it);
  ++counters_.nodes_gone;
  if (gone->slot < slots_.size()) {
    affinity_.forget(gone->slot);
    slots_[gone->slot] = false;
  }
  lost_.emplace_back(status_of(*gone, deps_.clock.now()), deps_.clock.now());
  deps_.observer.on_event(1, "node lost: " + why, gone->id(), 0);
  control::ToNode message;  // its peers fence its generation before anything is sent elsewhere
  message.mutable_peer_gone()->set_node_id(gone->id());
  message.mutable_peer_gone()->set_generation(gone->hello.generation());
  for (const auto& [other, n] : nodes_) {
    if (n->role != gone->role) deps_.send(n->handle, message);
  }
  std::vector<RequestId> hit;
  for (const auto& [id, r] : requests_) {
    if (r->phase == Phase::kQueued) continue;
    const bool needs_prefill = r->prefill == handle && !(r->admitted && r->has_first());
    if (r->decode == handle || needs_prefill) hit.push_back(r->id);
    if (r->prefill == handle && !needs_prefill) r->prefill = {};
  }
  // Oldest last: each returns to the front of the queue, so that the order of arrival is kept.
  std::sort(hit.begin(), hit.end(), [](RequestId a, RequestId b) { return a > b; });
  const Error error =
      make_error(ErrorCode::kTransport, fmt::format("node {} is gone: {}", gone->id(), why));
  for (RequestId id : hit) {
    if (Request* r = request(id.value)) retry(*r, error, {}, handle, true);
  }
  pump();
}

void Dispatcher::Impl::tick() {
  const TimePoint now = deps_.clock.now();
  sweep_nodes(now);
  std::vector<RequestId> due;
  for (const auto& [id, r] : requests_) {
    const TimePoint limit = r->phase == Phase::kQueued ? r->queue_until : r->deadline;
    if (now >= limit || now >= r->expires) due.push_back(r->id);
  }
  std::sort(due.begin(), due.end());
  for (RequestId id : due) {
    if (Request* r = request(id.value)) sweep_request(*r, now);
  }
  while (!lost_.empty() && now - lost_.front().second > kRememberLost) lost_.pop_front();
  pump();
}

bool Dispatcher::Impl::stuck(const Node& n, TimePoint now) const {
  return n.beat.running() + n.beat.queued() > 0 && now - n.last_progress > kStuckAfter;
}

void Dispatcher::Impl::sweep_nodes(TimePoint now) {
  std::vector<std::pair<NodeHandle, std::string>> dead;
  for (const auto& [handle, n] : nodes_) {
    if (now - n->last_beat > options_.peer_timeout) {
      dead.emplace_back(n->handle,
                        fmt::format("no heartbeat for {:.1f} s", to_seconds(now - n->last_beat)));
    } else if (stuck(*n, now) && n->open_requests > 0) {
      dead.emplace_back(n->handle, fmt::format("its scheduler has not advanced for {:.0f} s",
                                               to_seconds(now - n->last_progress)));
    }
  }
  for (const auto& [handle, why] : dead) fence(handle, why);
}

void Dispatcher::Impl::fence(NodeHandle handle, const std::string& why) {
  ++counters_.generations_fenced;
  remove_node(handle, why);
  deps_.close(handle);
}

void Dispatcher::Impl::sweep_request(Request& r, TimePoint now) {
  if (now >= r.expires) {
    return fail(
        r, make_error(ErrorCode::kDeadlineExceeded,
                      fmt::format("the request took longer than the {} s that this router allows",
                                  to_seconds(options_.request_timeout))));
  }
  switch (r.phase) {
    case Phase::kQueued:
      r.forced_local = true;
      r.avoid.clear();
      // dispatch() may fail the request; otherwise it is out of the queue, wherever it stood.
      if (dispatch(r)) {
        std::erase(queue_, r.id);
      } else {
        fail_unplaced(r);
      }
      return;
    case Phase::kReserving: {
      ++counters_.reserve_timeouts;
      const NodeHandle blame = r.decode;
      if (Node* n = node(blame)) record(*n, Outcome::kFailure);
      return retry(r,
                   make_error(ErrorCode::kTransport, "a decode node did not answer a reservation"),
                   blame, {}, true);
    }
    case Phase::kPrefilling: {
      ++counters_.leases_expired;
      // Before PrefillDone the prefill node is late; afterwards decode has not seen the KV
      // complete.
      const NodeHandle blame = r.prefill_done && r.decode.value != 0 ? r.decode : r.prefill;
      if (Node* n = node(blame)) record(*n, Outcome::kFailure);
      return retry(r,
                   make_error(ErrorCode::kTransport,
                              r.prefill_done ? "the KV did not arrive within its lease"
                                             : "the prefill was not done within its lease"),
                   blame, {}, true);
    }
    case Phase::kDecoding: {
      ++counters_.stalls;
      const NodeHandle blame = r.decode;
      if (Node* n = node(blame)) record(*n, Outcome::kFailure);
      return retry(r, make_error(ErrorCode::kTransport, "a decode node sent no token in time"),
                   blame, {}, true);
    }
  }
}

NodeStatus Dispatcher::Impl::status_of(const Node& n, TimePoint now) const {
  NodeStatus s;
  s.handle = n.handle;
  s.id = n.id();
  s.role = n.role;
  s.generation = n.hello.generation();
  s.draining = n.draining;
  s.stuck = stuck(n, now);
  s.breaker = n.breaker.state(now);
  s.engine = n.hello.engine();
  s.transport = n.hello.transport();
  s.transport_detail = n.hello.transport_detail();
  s.transport_reason = n.hello.transport_reason();
  s.build_version = n.hello.build_version();
  s.max_context = n.hello.max_context();
  s.queued = n.beat.queued();
  s.running = n.beat.running();
  s.open_requests = n.open_requests;
  s.kv_used = n.beat.kv_blocks_used();
  s.kv_cached = n.beat.kv_blocks_cached();
  s.kv_total = n.hello.kv_blocks();
  s.kv_free = n.beat.tick() == 0 ? s.kv_total : n.beat.kv_blocks_free();
  s.reservations = n.beat.reservations();
  s.prefix_hit_tokens = n.beat.prefix_hit_tokens();
  s.prefix_query_tokens = n.beat.prefix_query_tokens();
  s.tokens_processed = n.beat.tokens_processed();
  s.prefill_tokens_per_second = n.beat.prefill_tokens_per_second();
  s.tokens_per_second = n.tokens_per_second;
  s.step_seconds = n.beat.step_seconds();
  s.heartbeat_age_seconds = to_seconds(now - n.last_beat);
  s.fitted_a = n.decode_time.a();
  s.fitted_b = n.decode_time.b();
  return s;
}

std::shared_ptr<const ClusterSnapshot> Dispatcher::Impl::snapshot() const {
  const TimePoint now = deps_.clock.now();
  auto s = std::make_shared<ClusterSnapshot>();
  for (const auto& [handle, n] : nodes_) {
    s->nodes.push_back(status_of(*n, now));
    const NodeStatus& status = s->nodes.back();
    s->max_context =
        s->max_context == 0 ? status.max_context : std::min(s->max_context, status.max_context);
    s->ready = s->ready || (n->role == NodeRole::kDecode && !n->draining && !status.stuck);
  }
  for (const auto& [status, when] : lost_) s->lost.push_back(status);
  s->queue_depth = static_cast<uint32_t>(queue_.size());
  s->queue_capacity = options_.queue_capacity;
  if (!queue_.empty()) {
    const auto it = requests_.find(queue_.front().value);
    if (it != requests_.end()) s->queue_oldest_seconds = to_seconds(now - it->second->submitted);
  }
  s->running = static_cast<uint32_t>(requests_.size() - std::min(requests_.size(), queue_.size()));
  s->ready = s->ready && !draining_;
  s->draining = draining_;
  s->counters = counters_;
  return s;
}

}  // namespace tandem::router
