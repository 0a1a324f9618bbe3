#include "common/transport/ucx/network_transport.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/transport/ucx/address.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_log.h"
#include "common/transport/ucx/worker.h"

namespace tandem::transport {
namespace {

using proto::KvFrameKind;

// Deadlines are swept this often while anything is open; otherwise the thread sleeps kIdleNap.
constexpr Duration kTick = std::chrono::milliseconds(10);
constexpr Duration kIdleNap = std::chrono::milliseconds(250);
// After the last event the thread polls this long before it sleeps: the next layer's frames or an
// ack often follow, and waking up costs more. Short, because nodes share their cores with compute.
constexpr Duration kSpin = std::chrono::microseconds(30);
// Not every one of UCX's transports raises an event when a full queue drains, so with sends in
// flight the naps start short and double while nothing happens.
constexpr Duration kShortestNap = std::chrono::microseconds(20);
// Bytes handed to UCX and not yet on their way, per peer: enough for full speed, little to drop.
constexpr size_t kWindowBytes = 2u << 20;
constexpr size_t kMaxPeers = 256;
// Pages of a frame, so that a message arrives in one piece and is checked and copied where it lies.
constexpr size_t kFramePayload = 56u << 10;
static_assert(kFramePayload + (4u << 10) <= UcxWorker::kWholeMessage);
constexpr Duration kGoodbye = std::chrono::milliseconds(200);

// A frame whose bytes are gathered first: pages on a device, a tail, a commit.
Result<Frame> build(const KvPost& post, const SendTable::Route& route, PageIo& pages) {
  const FrameOrigin& origin = route.origin;
  if (post.kind == KvFrameKind::kCommit) return make_commit_frame(origin, post.commit);
  if (post.kind == KvFrameKind::kTail) {
    TANDEM_ASSIGN(auto bytes, pages.read(route.tail, post.pages.front()));
    return make_page_frame(origin, post.kind, post.layer, 0, route.tail_rows, std::move(bytes));
  }
  TANDEM_ASSIGN(auto bytes, pages.read(post.pages));
  return make_page_frame(origin, post.kind, post.layer, post.first_page,
                         static_cast<uint32_t>(post.pages.size()), std::move(bytes));
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

class NetworkTransportImpl final : public NetworkTransport {
 public:
  NetworkTransportImpl(const UcxOptions& options, const TransportDeps& deps,
                       std::shared_ptr<ReceiveSide> side)
      : NetworkTransport(deps, std::move(side), kFramePayload),
        options_(options),
        pages_(deps.memory) {
    if (options_.on_warning) log_.emplace(options_.on_warning);
  }
  ~NetworkTransportImpl() override { stop_thread(); }
  Status start() { return start_thread(); }

  std::string_view name() const override { return "ucx"; }
  std::string detail() const override { return "ucx " + UcxWorker::version() + ": " + links(); }
  const std::set<std::string>& available() const override { return available_; }
  std::string address() const override { return address_; }

 private:
  struct Peer {
    UcxAddress address;
    UcxWorker::EndpointId endpoint = 0;
    std::deque<KvPost> pending;
    size_t in_flight_bytes = 0;
    uint64_t last_used = 0;
    bool named = false;    // its lanes are part of links()
    bool pumping = false;  // pump() is on the stack
  };

  Status check_address(const std::string& address) const override {
    TANDEM_TRY(parse_ucx_address(address));
    return {};
  }

  // ---- the UCX thread ----
  bool has_stood(const std::string& address) const override {
    const auto peer = peers_.find(address);
    return peer != peers_.end() && peer->second.named;
  }
  Status set_up() override;
  void loop(const std::stop_token& stop) override;
  void tear_down() override { worker_.reset(); }  // on the thread that made it
  Status connect(const std::string& address) override {
    TANDEM_TRY(reach(address));
    return {};
  }
  void send_post(KvPost post, const std::string& address) override;
  void tell(const SendTable::Route& route, KvFrameKind kind, const Error& error) override;
  void sleep_until_event(Duration limit);
  void warn(const std::string& text) {
    if (options_.on_warning) options_.on_warning(text);
  }
  void on_message(std::span<const std::byte> bytes);
  void send_answers();

  Peer* find_peer(const std::string& address) {
    const auto it = peers_.find(address);
    return it == peers_.end() ? nullptr : &it->second;
  }
  Result<Peer*> reach(const std::string& address);
  void pump(Peer& peer);
  void send(Peer& peer, const std::string& address, Frame frame);
  void name_lanes(const std::string& address, Peer& peer);
  void drop_failed_peers();
  void drop_peer(const std::string& address);
  bool make_room_for_peer();

  UcxOptions options_;
  std::optional<UcxLog> log_;
  PageIo pages_;         // the UCX thread's
  std::string address_;  // set before start() returns, as is available_
  std::set<std::string> available_;

  // The UCX thread's own.
  std::unordered_map<std::string, Peer> peers_;              // by Transport address
  std::vector<std::pair<std::string, std::string>> failed_;  // address, why
  std::vector<std::pair<std::string, Frame>> answers_;       // address, of this round's messages
  std::set<std::string> lanes_;
  uint64_t uses_ = 0;
  std::unique_ptr<UcxWorker> worker_;
};

Status NetworkTransportImpl::set_up() {
  UcxWorker::Callbacks callbacks;
  callbacks.on_message = [this](auto bytes) { on_message(bytes); };
  callbacks.on_endpoint_failed = [this](UcxWorker::EndpointId id, const std::string& why) {
    for (const auto& [address, peer] : peers_) {
      if (peer.endpoint == id) failed_.emplace_back(address, why);
    }
  };
  TANDEM_ASSIGN(worker_, UcxWorker::create({.tls = options_.tls}, std::move(callbacks)));
  address_ = encode_ucx_address({this_host(), worker_->address()});
  available_ = worker_->available();
  return {};
}

void NetworkTransportImpl::loop(const std::stop_token& stop) {
  TimePoint last_event = clock_.now();
  TimePoint next_sweep = last_event;
  Duration short_nap = kShortestNap;
  while (!stop.stop_requested()) {
    bool any = drain_inbox();
    for (int i = 0; i < 16 && worker_->progress(); ++i) {
      any = true;
      send_answers();
    }
    if (!failed_.empty()) drop_failed_peers();
    const TimePoint now = clock_.now();
    if (now >= next_sweep) {
      sweep_transfers(now);
      next_sweep = now + kTick;
    }
    if (any) {
      last_event = now;
      short_nap = kShortestNap;
    }
    const bool open = sends_.open_count() > 0 || receives_.open_count() > 0;
    if (any || (open && now - last_event < kSpin)) continue;
    if (worker_->in_flight() > 0) {
      sleep_until_event(short_nap);
      short_nap = std::min(2 * short_nap, kTick);
    } else {
      sleep_until_event(open ? kTick : kIdleNap);
    }
  }
  // Answers and cancels that are under way still go out.
  const TimePoint give_up = clock_.now() + kGoodbye;
  while (worker_->in_flight() > 0 && clock_.now() < give_up) {
    if (!worker_->progress()) sleep_until_event(std::chrono::milliseconds(1));
  }
}

void NetworkTransportImpl::sleep_until_event(Duration limit) {
  if (!worker_->arm()) return;
  pollfd fds[] = {{worker_->event_fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
  timespec timeout{};
  timeout.tv_nsec = static_cast<long>(limit.count());  // always under a second
  if (ppoll(fds, 2, &timeout, nullptr) <= 0 || (fds[1].revents & POLLIN) == 0) return;
  wake_.drain();
}

void NetworkTransportImpl::on_message(std::span<const std::byte> bytes) {
  const auto message = parse_ucx_message(bytes);
  counters_.count_received(message ? message->header.size() + message->payload.size()
                                   : bytes.size());
  if (!message) {
    counters_.rejected_malformed.fetch_add(1);
    return;
  }
  const auto header = proto::parse_kv_header(message->header);
  if (!header) {
    const bool checksum = header.error().code == ErrorCode::kCorruptData;
    (checksum ? counters_.rejected_checksum : counters_.rejected_malformed).fetch_add(1);
    return;
  }
  if (header->kind == KvFrameKind::kAck || header->kind == KvFrameKind::kReject) {
    if (const auto route = sends_.route(header->transfer)) {
      if (Peer* const peer = find_peer(route->address)) name_lanes(route->address, *peer);
    }
    sends_.deliver(*header, message->payload);
    return;
  }
  if (const auto answer = receives_.deliver(*header, message->payload)) {
    answers_.emplace_back(message->answer_to, answer->frame());
  }
}

// Not from within on_message(): an answer may have to connect first.
void NetworkTransportImpl::send_answers() {
  for (auto& [address, frame] : std::exchange(answers_, {})) {
    const auto peer = reach(address);
    if (!peer) {
      warn("an answer could not be sent: " + peer.error().to_string());
      continue;
    }
    name_lanes(address, **peer);  // before anybody learns that a transfer has ended
    counters_.count_sent(frame.wire_bytes());
    send(**peer, address, std::move(frame));
  }
}

// The peer with this address, connected to if that is new.
Result<NetworkTransportImpl::Peer*> NetworkTransportImpl::reach(const std::string& address) {
  Peer* peer = find_peer(address);
  if (peer == nullptr) {
    Peer fresh;
    TANDEM_ASSIGN(fresh.address, parse_ucx_address(address));
    if (!make_room_for_peer()) {
      return fail(ErrorCode::kResourceExhausted,
                  "all " + std::to_string(kMaxPeers) + " peers are in use");
    }
    TANDEM_ASSIGN(fresh.endpoint, worker_->connect(fresh.address.worker));
    peer = &peers_.emplace(address, std::move(fresh)).first->second;
  }
  peer->last_used = ++uses_;
  return peer;
}

void NetworkTransportImpl::send_post(KvPost post, const std::string& address) {
  Peer* const peer = find_peer(address);
  if (peer == nullptr) return forget_posts(1);
  peer->pending.push_back(std::move(post));
  pump(*peer);
}

// Builds and sends what the window allows. Frames are built here, so that a transfer that ended
// takes no time and its memory is not touched after its event.
//
// A send may be done before it returns and then asks for the next: the loop that is already running
// takes it, or as many stack frames would pile up as posts are pending.
void NetworkTransportImpl::pump(Peer& peer) {
  if (peer.pumping) return;
  peer.pumping = true;
  while (!peer.pending.empty() && peer.in_flight_bytes < kWindowBytes) {
    const KvPost post = std::move(peer.pending.front());
    peer.pending.pop_front();
    forget_posts(1);
    const auto route = sends_.route(post.id);
    if (!route) continue;
    auto frame = build(post, *route, pages_);
    if (!frame) {  // the device's fault
      end_send(post.id, frame.error(), KvFrameKind::kError);
      continue;
    }
    sends_.count_frame(route->origin.transfer, frame->wire_bytes());
    send(peer, route->address, std::move(*frame));
  }
  peer.pumping = false;
}

void NetworkTransportImpl::send(Peer& peer, const std::string& address, Frame frame) {
  const size_t bytes = ucx_message_bytes(address_, frame.payload.size());
  peer.in_flight_bytes += bytes;
  auto pack = [this, frame = std::move(frame)](std::span<std::byte> to) {
    write_ucx_message(to, address_, frame);
  };
  // By address: the peer may be gone when the send is done. A failed send comes with a failed
  // endpoint, which ends the transfers.
  const UcxWorker::EndpointId endpoint = peer.endpoint;
  auto done = [this, address, endpoint, bytes](bool) {
    Peer* const same = find_peer(address);
    if (same == nullptr || same->endpoint != endpoint) return;
    const bool was_full = same->in_flight_bytes >= kWindowBytes;
    same->in_flight_bytes -= bytes;
    if (was_full) pump(*same);
  };
  worker_->send(endpoint, {bytes, std::move(pack), std::move(done)});
}

void NetworkTransportImpl::tell(const SendTable::Route& route, KvFrameKind kind,
                                const Error& error) {
  Peer* const peer = find_peer(route.address);
  if (peer == nullptr) return;
  Frame frame = make_reason_frame(route.origin, kind, error);
  counters_.count_sent(frame.wire_bytes());
  send(*peer, route.address, std::move(frame));
}

// Once frames have come back or gone back. A transfer to itself (a self-test) says nothing about
// other processes.
void NetworkTransportImpl::name_lanes(const std::string& address, Peer& peer) {
  if (peer.named) return;
  peer.named = true;
  stands(address);
  if (peer.address.worker == worker_->address()) return;
  const std::set<std::string> lanes = worker_->lanes(peer.endpoint);
  lanes_.insert(lanes.begin(), lanes.end());
  set_links(join(lanes_));
}

void NetworkTransportImpl::drop_failed_peers() {
  for (auto failed = std::exchange(failed_, {}); const auto& [address, why] : failed) {
    drop_peer(address);
    const Error error =
        make_error(ErrorCode::kTransport, "the connection to the peer broke: " + why);
    cannot_be_met(address, error);
    sends_.end_all(address, std::nullopt, error);
  }
}

void NetworkTransportImpl::drop_peer(const std::string& address) {
  const auto it = peers_.find(address);
  if (it == peers_.end()) return;
  const UcxWorker::EndpointId endpoint = it->second.endpoint;
  forget_posts(it->second.pending.size());
  peers_.erase(it);
  worker_->disconnect(endpoint);
}

bool NetworkTransportImpl::make_room_for_peer() {
  if (peers_.size() < kMaxPeers) return true;
  const std::unordered_map<std::string, Peer>::value_type* oldest = nullptr;
  for (const auto& entry : peers_) {
    const bool idle = entry.second.pending.empty() && entry.second.in_flight_bytes == 0 &&
                      !sends_.uses(entry.first);
    if (idle && (oldest == nullptr || entry.second.last_used < oldest->second.last_used)) {
      oldest = &entry;
    }
  }
  if (oldest == nullptr) return false;
  stands(oldest->first);  // nobody's fault
  drop_peer(std::string(oldest->first));
  return true;
}

}  // namespace

Result<std::unique_ptr<NetworkTransport>> create_network_transport(
    const UcxOptions& options, const TransportDeps& deps, std::shared_ptr<ReceiveSide> side) {
  auto transport = std::make_unique<NetworkTransportImpl>(options, deps, std::move(side));
  TANDEM_TRY(transport->start());
  return transport;
}

}  // namespace tandem::transport
