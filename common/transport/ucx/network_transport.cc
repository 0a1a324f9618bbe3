#include "common/transport/ucx/network_transport.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/transport/receive_table.h"
#include "common/transport/send_table.h"
#include "common/transport/ucx/address.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_log.h"
#include "common/transport/ucx/worker.h"
#include "common/transport/wake_fd.h"

namespace tandem::transport {
namespace {

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

// Work for the UCX thread.
struct PostPages {
  TransferId id;
  uint32_t layer;
  uint32_t first_page;
  std::vector<std::span<const std::byte>> pages;
};
struct PostTail {
  TransferId id;
  uint32_t layer;
  std::span<const std::byte> page;
};
struct PostCommit {
  TransferId id;
  std::string commit;
};
struct Connect {
  TransferId id;
};
struct End {  // cancel_send, or a post that failed
  TransferId id;
  Error error;
  proto::KvFrameKind kind;
};
struct Fence {
  Generation sender;
};
using Command = std::variant<Connect, PostPages, PostTail, PostCommit, End, Fence>;
using Post = std::variant<PostPages, PostTail, PostCommit>;

TransferId transfer_of(const Post& post) {
  return std::visit([](const auto& p) { return p.id; }, post);
}

// A frame whose bytes are gathered first: pages on a device, a tail, a commit.
Result<Frame> build(const Post& post, const SendTable::Route& route, PageIo& pages) {
  const FrameOrigin& origin = route.origin;
  if (const auto* p = std::get_if<PostPages>(&post)) {
    TANDEM_ASSIGN(auto bytes, pages.read(p->pages));
    return make_page_frame(origin, proto::KvFrameKind::kData, p->layer, p->first_page,
                           static_cast<uint32_t>(p->pages.size()), std::move(bytes));
  }
  if (const auto* p = std::get_if<PostTail>(&post)) {
    TANDEM_ASSIGN(auto bytes, pages.read(route.tail, p->page));
    return make_page_frame(origin, proto::KvFrameKind::kTail, p->layer, 0, route.tail_rows,
                           std::move(bytes));
  }
  return make_commit_frame(origin, std::get<PostCommit>(post).commit);
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
      : options_(options),
        clock_(deps.clock),
        limits_(deps.limits),
        side_(side ? std::move(side) : std::make_shared<ReceiveSide>(deps)),
        sends_(deps, counters_),
        pages_(deps.memory) {
    if (options_.on_warning) log_.emplace(options_.on_warning);
  }
  ~NetworkTransportImpl() override {
    thread_.request_stop();
    wake_.wake();
    if (thread_.joinable()) thread_.join();
  }
  Status start();

  std::string_view name() const override { return "ucx"; }
  std::string detail() const override { return "ucx " + UcxWorker::version() + ": " + links(); }
  std::string links() const override {
    std::lock_guard lock(mutex_);
    return links_;
  }
  const std::set<std::string>& available() const override { return available_; }
  std::string address() const override { return address_; }
  TransportCounters counters() const override { return counters_.snapshot(); }

  Status open_receive(ReceivePlan plan) override {
    TANDEM_TRY(receives_.open(std::move(plan)));
    wake_.wake();  // the thread may be in its long nap: its deadline is to be swept from now on
    return {};
  }
  void close_receive(TransferId id) override { receives_.close(id); }
  void fence(Generation sender) override {
    receives_.shut_out(sender);
    push(Fence{sender});
  }
  void readmit(Generation sender) override { receives_.readmit(sender); }
  Status open_send(const SendSpec& spec) override {
    TANDEM_TRY(parse_ucx_address(spec.address));
    TANDEM_TRY(sends_.open(spec));
    push(Connect{spec.id});
    return {};
  }
  Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                    std::span<const std::span<const std::byte>> pages) override {
    if (pages.empty()) return {};
    TANDEM_TRY(checked(id, sends_.post_pages(id, layer, first_page, pages)));
    const auto post_frame = [&](uint32_t first, auto part) {
      return post(id, PostPages{id, layer, first, {part.begin(), part.end()}});
    };
    return for_each_frame(first_page, pages, post_frame, kFramePayload);
  }
  Status post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page) override {
    TANDEM_TRY(checked(id, sends_.post_tail(id, layer, page)));
    return post(id, PostTail{id, layer, page});
  }
  Status post_commit(TransferId id, std::string commit) override {
    TANDEM_TRY(checked(id, sends_.post_commit(id, commit.size())));
    return post(id, PostCommit{id, std::move(commit)});
  }
  void cancel_send(TransferId id, std::string reason) override {
    push(
        End{id, make_error(ErrorCode::kCancelled, std::move(reason)), proto::KvFrameKind::kCancel});
  }

 private:
  struct Peer {
    UcxAddress address;
    UcxWorker::EndpointId endpoint = 0;
    std::deque<Post> pending;
    size_t in_flight_bytes = 0;
    uint64_t last_used = 0;
    bool named = false;    // its lanes are part of detail_
    bool pumping = false;  // pump() is on the stack
  };

  // ---- any thread ----
  void push(Command command) {
    {
      std::lock_guard lock(mutex_);
      inbox_.push_back(std::move(command));
    }
    wake_.wake();
  }
  Status checked(TransferId id, Status status) {
    if (!status) push(End{id, status.error(), proto::KvFrameKind::kError});
    return status;
  }
  template <typename P>
  Status post(TransferId id, P work) {
    {
      std::lock_guard lock(mutex_);
      if (queued_posts_ < limits_.max_queued_frames) {
        ++queued_posts_;
        inbox_.emplace_back(std::move(work));
        wake_.wake();
        return {};
      }
    }
    return checked(id,
                   fail(ErrorCode::kQueueFull, "all " + std::to_string(limits_.max_queued_frames) +
                                                   " places of the send queue are taken"));
  }

  // ---- the UCX thread ----
  void run(const std::stop_token& stop, std::promise<Status>& started);
  Status set_up();
  void loop(const std::stop_token& stop);
  bool drain_inbox();
  void sleep_until_event(Duration limit);
  void warn(const std::string& text) {
    if (options_.on_warning) options_.on_warning(text);
  }
  void on_message(std::span<const std::byte> bytes);
  void send_answers();

  void handle(Connect&& c);
  void handle(PostPages&& p) { enqueue(std::move(p)); }
  void handle(PostTail&& p) { enqueue(std::move(p)); }
  void handle(PostCommit&& p) { enqueue(std::move(p)); }
  void handle(End&& e) {
    if (const auto route = sends_.end(e.id, e.error)) tell(*route, e.kind, e.error);
  }
  void handle(Fence&& f) { receives_.end_shut_out(f.sender); }

  template <typename P>
  void enqueue(P&& post) {
    const auto route = sends_.route(post.id);
    Peer* const peer = route ? find_peer(route->address) : nullptr;
    if (peer == nullptr) {
      forget_post();
      return;
    }
    peer->pending.emplace_back(std::forward<P>(post));
    pump(*peer);
  }
  void forget_post() {
    std::lock_guard lock(mutex_);
    --queued_posts_;
  }
  Peer* find_peer(const std::string& address) {
    const auto it = peers_.find(address);
    return it == peers_.end() ? nullptr : &it->second;
  }
  Result<Peer*> reach(const std::string& address);
  void pump(Peer& peer);
  void send(Peer& peer, const std::string& address, Frame frame);
  void tell(const SendTable::Route& route, proto::KvFrameKind kind, const Error& error);
  void name_lanes(Peer& peer);
  void drop_failed_peers();
  void drop_peer(const std::string& address);
  bool make_room_for_peer();
  void sweep(TimePoint now);

  UcxOptions options_;
  std::optional<UcxLog> log_;
  const Clock& clock_;
  const TransportLimits limits_;
  const std::shared_ptr<ReceiveSide> side_;
  AtomicCounters& counters_ = side_->counters;
  ReceiveTable& receives_ = side_->receives;
  SendTable sends_;
  PageIo pages_;  // the UCX thread's
  WakeFd wake_;
  std::string address_;  // set before start() returns, as is available_
  std::set<std::string> available_;

  mutable std::mutex mutex_;
  std::deque<Command> inbox_;  // posts bounded by max_queued_frames, the rest by transfers
  size_t queued_posts_ = 0;    // in inbox_ and in every peer's `pending`
  std::string links_;

  // The UCX thread's own.
  std::unordered_map<std::string, Peer> peers_;              // by Transport address
  std::vector<std::pair<std::string, std::string>> failed_;  // address, why
  std::vector<std::pair<std::string, Frame>> answers_;       // address, of this round's messages
  std::set<std::string> lanes_;
  uint64_t uses_ = 0;
  std::unique_ptr<UcxWorker> worker_;

  std::jthread thread_;  // last: joined before anything above goes
};

Status NetworkTransportImpl::start() {
  TANDEM_ASSIGN(wake_, WakeFd::create());
  std::promise<Status> started;
  std::future<Status> result = started.get_future();
  thread_ = std::jthread([this, &started](const std::stop_token& stop) { run(stop, started); });
  return result.get();
}

void NetworkTransportImpl::run(const std::stop_token& stop, std::promise<Status>& started) {
  Status status = set_up();
  const bool good = status.has_value();
  started.set_value(std::move(status));
  if (good) loop(stop);
  worker_.reset();  // on the thread that made it
}

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
      sweep(now);
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

bool NetworkTransportImpl::drain_inbox() {
  std::deque<Command> work;
  {
    std::lock_guard lock(mutex_);
    work.swap(inbox_);
  }
  for (Command& command : work) {
    std::visit([this](auto&& c) { handle(std::move(c)); }, std::move(command));
  }
  return !work.empty();
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
  if (header->kind == proto::KvFrameKind::kAck || header->kind == proto::KvFrameKind::kReject) {
    if (const auto route = sends_.route(header->transfer)) {
      if (Peer* const peer = find_peer(route->address)) name_lanes(*peer);
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
    name_lanes(**peer);  // before anybody learns that a transfer has ended
    counters_.count_sent(frame.wire_bytes());
    send(**peer, address, std::move(frame));
  }
}

void NetworkTransportImpl::handle(Connect&& c) {
  const auto route = sends_.route(c.id);
  if (!route) return;
  auto peer = reach(route->address);
  if (!peer) (void)sends_.end(c.id, std::move(peer).error());
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

// Builds and sends what the window allows. Frames are built here, so that a transfer that ended
// takes no time and its memory is not touched after its event.
//
// A send may be done before it returns and then asks for the next: the loop that is already running
// takes it, or as many stack frames would pile up as posts are pending.
void NetworkTransportImpl::pump(Peer& peer) {
  if (peer.pumping) return;
  peer.pumping = true;
  while (!peer.pending.empty() && peer.in_flight_bytes < kWindowBytes) {
    const Post post = std::move(peer.pending.front());
    peer.pending.pop_front();
    forget_post();
    const auto route = sends_.route(transfer_of(post));
    if (!route) continue;
    auto frame = build(post, *route, pages_);
    if (!frame) {  // the device's fault
      handle(End{route->origin.transfer, frame.error(), proto::KvFrameKind::kError});
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

void NetworkTransportImpl::tell(const SendTable::Route& route, proto::KvFrameKind kind,
                                const Error& error) {
  Peer* const peer = find_peer(route.address);
  if (peer == nullptr) return;
  Frame frame = make_reason_frame(route.origin, kind, error);
  counters_.count_sent(frame.wire_bytes());
  send(*peer, route.address, std::move(frame));
}

// Once frames have come back or gone back. A transfer to itself (a self-test) says nothing about
// other processes.
void NetworkTransportImpl::name_lanes(Peer& peer) {
  if (peer.named) return;
  peer.named = true;
  if (peer.address.worker == worker_->address()) return;
  const std::set<std::string> lanes = worker_->lanes(peer.endpoint);
  lanes_.insert(lanes.begin(), lanes.end());
  std::lock_guard lock(mutex_);
  links_ = join(lanes_);
}

void NetworkTransportImpl::drop_failed_peers() {
  for (auto failed = std::exchange(failed_, {}); const auto& [address, why] : failed) {
    drop_peer(address);
    sends_.end_all(address, std::nullopt,
                   make_error(ErrorCode::kTransport, "the connection to the peer broke: " + why));
  }
}

void NetworkTransportImpl::drop_peer(const std::string& address) {
  const auto it = peers_.find(address);
  if (it == peers_.end()) return;
  const UcxWorker::EndpointId endpoint = it->second.endpoint;
  for (size_t i = 0; i < it->second.pending.size(); ++i) forget_post();
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
  drop_peer(std::string(oldest->first));
  return true;
}

void NetworkTransportImpl::sweep(TimePoint now) {
  receives_.sweep(now);
  for (const SendTable::Route& route : sends_.sweep(now)) {
    tell(route, proto::KvFrameKind::kError,
         make_error(ErrorCode::kDeadlineExceeded, "the sender's deadline passed"));
  }
}

}  // namespace

Result<std::unique_ptr<NetworkTransport>> create_network_transport(
    const UcxOptions& options, const TransportDeps& deps, std::shared_ptr<ReceiveSide> side) {
  auto transport = std::make_unique<NetworkTransportImpl>(options, deps, std::move(side));
  TANDEM_TRY(transport->start());
  return transport;
}

}  // namespace tandem::transport
