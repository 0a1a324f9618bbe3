#include "common/node/role_state.h"

#include <string>
#include <utility>

namespace tandem::node {
namespace {

// Far more than can be in flight at once.
constexpr size_t kRememberedRequests = 4096;

// Gauges are for scrapes, which come every few seconds.
constexpr uint64_t kTicksPerGauge = 20;

}  // namespace

RoleState::RoleState(Send s) : send(std::move(s)), ended_(kRememberedRequests) {}

void RoleState::on_message(const control::ToNode& message) {
  switch (message.message_case()) {
    case control::ToNode::kPrefill:
      prefill(message.prefill());
      break;
    case control::ToNode::kReserve:
      reserve(message.reserve());
      break;
    case control::ToNode::kGenerate:
      generate(message.generate());
      break;
    case control::ToNode::kCancel:
      cancel(message.cancel());
      break;
    case control::ToNode::kPeerHere:
      peer_here(message.peer_here());
      break;
    case control::ToNode::kPeerGone:
      peer_gone(message.peer_gone());
      break;
    case control::ToNode::kDrain:
      draining = true;
      break;
    case control::ToNode::kChallenge:  // the handshake is over
    case control::ToNode::kWelcome:
    case control::ToNode::MESSAGE_NOT_SET:
      break;
  }
  settle();
}

void RoleState::on_disconnected() {
  drop_everything(make_error(ErrorCode::kUnavailable, "the router is gone"));
  ++session;
  ended_.clear();  // a new session may number its requests anew
  drop_ended();
}

void RoleState::tick() {
  ++ticks_;
  sweep();
  settle();
  if (ticks_ % kTicksPerGauge == 0) update_gauges();
}

void RoleState::settle() {
  drop_ended();
  start_work();
}

void RoleState::report_failure(RequestId request, TransferId transfer, const Error& error) {
  control::ToRouter message;
  auto& failed = *message.mutable_failed();
  failed.set_request_id(request.value);
  failed.set_transfer_id(transfer.value);
  failed.set_code(std::string(error_traits(error.code).label));
  failed.set_detail(error.detail);
  failed.set_retryable(error_traits(error.code).retryable);
  send(std::move(message));
}

// A transfer id is used once. Without one only success is final: the router may send a failed or
// cancelled request here again.
void RoleState::remember_ended(RequestId request, TransferId transfer, uint64_t its_session,
                               bool ok) {
  if (its_session != session || (transfer.value == 0 && !ok)) return;
  ended_.add({request.value, transfer.value});
}

bool RoleState::has_ended(RequestId request, TransferId transfer) const {
  return ended_.contains({request.value, transfer.value});
}

control::Heartbeat RoleState::heartbeat(const KvUsage& usage) const {
  control::Heartbeat h;
  h.set_tick(ticks_);
  h.set_kv_blocks_used(usage.used);
  h.set_kv_blocks_cached(usage.cached);
  h.set_kv_blocks_free(usage.free);
  h.set_prefix_hit_tokens(usage.prefix_hit_tokens);
  h.set_prefix_query_tokens(usage.prefix_query_tokens);
  h.set_draining(draining);
  return h;
}

void RoleState::prefill(const control::Prefill& m) {
  refuse(m.task(), m.transfer_id(), "prefill for other nodes");
}
void RoleState::reserve(const control::Reserve& m) {
  refuse(m.task(), m.transfer_id(), "reserve KV blocks");
}
void RoleState::generate(const control::Generate& m) { refuse(m.task(), 0, "generate"); }

void RoleState::refuse(const control::Task& task, uint64_t transfer, std::string_view work) {
  report_failure(
      RequestId{task.request_id()}, TransferId{transfer},
      make_error(ErrorCode::kUnsupported, "a node of this role does not " + std::string(work)));
}

}  // namespace tandem::node
