#include "common/transport/direct/direct_transport.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/transport/direct/inbound.h"
#include "common/transport/direct/outbound.h"

namespace tandem::transport {
namespace {

using proto::KvFrameKind;

constexpr Duration kTick = std::chrono::milliseconds(10);
constexpr Duration kIdleNap = std::chrono::milliseconds(250);
// Device work tells nobody that it is done: the thread looks for it, at first without a pause. So
// it does for answers, where the fabric wants that.
constexpr Duration kSpin = std::chrono::microseconds(200);
// The same where the fabric wants to stay awake: copies of a large batch take longer than that, and
// under a hypervisor a thread that sleeps may be late by milliseconds.
constexpr Duration kLongSpin = std::chrono::milliseconds(2);
constexpr Duration kBusyNap = std::chrono::microseconds(20);
constexpr size_t kMaxPeers = 256;
// A stranger that connects and says nothing is let go after this.
constexpr Duration kGreetingTime = std::chrono::seconds(5);
constexpr Duration kGoodbye = std::chrono::milliseconds(200);

// Names this boot of this kernel, the network namespace, within which abstract sockets reach, and
// the user, whose processes only are let in.
uint64_t socket_reach() {
  std::string text;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, text);
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) == 0) text += ' ' + std::to_string(net.st_ino);
  text += ' ' + std::to_string(geteuid());
  return XXH3_64bits(text.data(), text.size());
}

class DirectTransport final : public ThreadedTransport {
 public:
  DirectTransport(std::unique_ptr<Fabric> fabric, const TransportDeps& deps,
                  std::function<void(const std::string&)> on_warning,
                  std::shared_ptr<ReceiveSide> side, const DirectWays& ways)
      : ThreadedTransport(deps, std::move(side), fabric->frame_bytes()),
        fabric_(std::move(fabric)),
        on_warning_(std::move(on_warning)),
        ways_(ways),
        core_{deps.self, deps.clock, counters_, receives_, sends_, *fabric_} {
    if (ways_.receives) receives_.set_barrier([this] { fabric_->copier(false).drain(); });
  }
  ~DirectTransport() override { stop_thread(); }
  Status start() { return start_thread(); }

  std::string_view name() const override { return fabric_->name(); }
  std::string detail() const override {
    const std::string text = links();
    return std::string(fabric_->name()) + " " + fabric_->version() + ": " +
           (text.empty() ? "not connected yet" : text);
  }
  std::string address() const override { return address_; }

 private:
  Status check_address(const std::string& address) const override;

  // ---- the transport's thread ----
  Status set_up() override;
  void loop(const std::stop_token& stop) override;
  void tear_down() override {
    peers_.clear();
    guests_.clear();
  }
  Status connect(const std::string& address) override;
  bool has_stood(const std::string& address) const override {
    const auto peer = peers_.find(address);
    return peer != peers_.end() && peer->second->stands();
  }
  void send_post(KvPost post, const std::string& address) override;
  void tell(const SendTable::Route& route, KvFrameKind kind, const Error& error) override;
  bool advance();
  void lose(const std::string& address, const Error& why);
  void lose(std::list<Inbound>::iterator peer, const Error& why);
  bool make_room_for_peer();
  void accept_connections();
  void wait_for_sockets(Duration limit);
  void name_links();
  void sweep(TimePoint now);
  void drop_self();
  [[nodiscard]] bool busy() const;
  [[nodiscard]] Duration nap(Duration quiet) const;  // after so long without an event

  const std::unique_ptr<Fabric> fabric_;
  const std::function<void(const std::string&)> on_warning_;
  const DirectWays ways_;
  DirectCore core_;
  std::string address_;  // set before start() returns
  uint64_t host_ = 0;

  // The thread's own.
  Listener listener_;
  std::unordered_map<std::string, std::unique_ptr<Outbound>> peers_;  // by Transport address
  std::list<Inbound> guests_;
  std::set<std::string> links_;
  bool heard_ = false;  // something may have come over a connection
  uint64_t uses_ = 0;
};

Status DirectTransport::set_up() {
  TANDEM_TRY(fabric_->start());
  host_ = socket_reach();
  if (!ways_.receives) return {};
  TANDEM_ASSIGN(listener_, Listener::open());
  address_ = encode_direct_address({host_, std::string(fabric_->name()), listener_.name()});
  return {};
}

Status DirectTransport::check_address(const std::string& address) const {
  TANDEM_ASSIGN(const DirectAddress to, parse_direct_address(address));
  if (to.fabric != fabric_->name()) {
    return fail(ErrorCode::kMismatch, "the receiver's KV transport is " + to.fabric +
                                          ", this process's is " + std::string(fabric_->name()));
  }
  if (to.host != host_) {
    return fail(
        ErrorCode::kUnsupported,
        std::string(fabric_->name()) +
            " joins processes of one host, network namespace and user only, and the receiver "
            "is on another; set transport.kind to ucx on both");
  }
  return {};
}

void DirectTransport::loop(const std::stop_token& stop) {
  TimePoint last_event = clock_.now();
  TimePoint next_sweep = last_event;
  while (!stop.stop_requested()) {
    bool any = heard_;
    any = drain_inbox() || any;
    any = advance() || any;
    const TimePoint now = clock_.now();
    if (now >= next_sweep) {
      sweep(now);
      next_sweep = now + kTick;
    }
    if (any) last_event = now;
    wait_for_sockets(any ? Duration::zero() : nap(now - last_event));
  }
  // Answers and cancels that are under way still go out.
  drain_inbox();
  const TimePoint give_up = clock_.now() + kGoodbye;
  const auto unsent = [&] {
    return std::ranges::any_of(
               peers_, [](const auto& p) { return p.second->connection().wants_write(); }) ||
           std::ranges::any_of(guests_, [](Inbound& g) { return g.connection().wants_write(); });
  };
  while (unsent() && clock_.now() < give_up) wait_for_sockets(std::chrono::milliseconds(1));
}

Duration DirectTransport::nap(Duration quiet) const {
  const bool open = sends_.open_count() > 0 || (ways_.receives && receives_.open_count() > 0);
  const bool works = busy();
  const bool awake = fabric_->stays_awake();
  if ((works || (open && awake)) && quiet < (awake ? kLongSpin : kSpin)) return Duration::zero();
  if (works) return kBusyNap;
  return open ? kTick : kIdleNap;
}

bool DirectTransport::busy() const {
  return (ways_.sends && fabric_->copier(true).busy()) ||
         (ways_.receives && fabric_->copier(false).busy()) ||
         std::ranges::any_of(peers_, [](const auto& p) { return p.second->busy(); }) ||
         std::ranges::any_of(guests_, [](const Inbound& g) { return g.busy(); });
}

// One round over all peers, then everything that they gave the copier is set going together.
bool DirectTransport::advance() {
  bool any = false;
  if (std::exchange(heard_, false)) name_links();  // before answers to what was heard go out
  std::vector<std::pair<std::string, Error>> lost;
  for (auto& [address, peer] : peers_) {
    Status status = peer->advance(any);
    if (status) status = peer->connection().flush();
    forget_posts(peer->take_started());
    if (!status) lost.emplace_back(address, status.error());
    if (introducing() && peer->stands()) stands(address);
  }
  for (const auto& [address, why] : lost) lose(address, why);
  // What waits goes before what is done is looked at.
  if (ways_.receives) fabric_->copier(false).flush();
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const auto here = guest++;
    Status status = here->advance(any);
    if (status) status = here->connection().flush();
    if (!status) lose(here, status.error());
  }
  if (ways_.receives) fabric_->copier(false).flush();
  if (ways_.sends) fabric_->copier(true).flush();
  return any;
}

Status DirectTransport::connect(const std::string& address) {
  auto peer = peers_.find(address);
  if (peer == peers_.end()) {
    if (peers_.size() >= kMaxPeers && !make_room_for_peer()) {
      return fail(ErrorCode::kResourceExhausted,
                  "all " + std::to_string(kMaxPeers) + " peers are in use");
    }
    TANDEM_ASSIGN(auto opened, Outbound::open(core_, address));
    peer = peers_.emplace(address, std::move(opened)).first;
  }
  peer->second->last_used = ++uses_;
  return {};
}

void DirectTransport::send_post(KvPost post, const std::string& address) {
  const auto peer = peers_.find(address);
  if (peer == peers_.end()) return forget_posts(1);
  peer->second->post(std::move(post));
}

void DirectTransport::tell(const SendTable::Route& route, KvFrameKind kind, const Error& error) {
  const auto peer = peers_.find(route.address);
  if (peer == peers_.end()) return;
  if (const Status told = peer->second->tell(route, kind, error); !told) {
    lose(std::string(route.address), told.error());
  }
}

void DirectTransport::lose(const std::string& address, const Error& why) {
  const auto it = peers_.find(address);
  if (it == peers_.end()) return;
  forget_posts(it->second->pending() + it->second->take_started());
  peers_.erase(it);
  cannot_be_met(address, why);
  sends_.end_all(address, std::nullopt, why);
}

void DirectTransport::lose(std::list<Inbound>::iterator guest, const Error& why) {
  const auto sender = guest->sender();
  (void)guest->connection().flush();
  guests_.erase(guest);
  if (why.code == ErrorCode::kCorruptData && on_warning_) {
    on_warning_("hung up on a sender of KV: " + why.detail);
  }
  if (sender) receives_.sender_lost(*sender, why);
}

bool DirectTransport::make_room_for_peer() {
  auto oldest = peers_.end();
  for (auto it = peers_.begin(); it != peers_.end(); ++it) {
    if (!it->second->idle() || sends_.uses(it->first)) continue;
    if (oldest == peers_.end() || it->second->last_used < oldest->second->last_used) oldest = it;
  }
  if (oldest == peers_.end()) return false;
  stands(oldest->first);  // nobody's fault
  peers_.erase(oldest);
  return true;
}

void DirectTransport::accept_connections() {
  size_t refused = 0;
  while (true) {
    Fd fd = listener_.accept(refused);
    if (!fd) break;
    if (guests_.size() < kMaxPeers) guests_.emplace_back(core_, Connection(std::move(fd)));
  }
  if (refused > 0 && on_warning_) {
    on_warning_("turned away processes of another user from the KV socket: " +
                std::to_string(refused));
  }
}

void DirectTransport::wait_for_sockets(Duration limit) {
  std::vector<pollfd> fds{{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
  std::vector<const std::string*> addresses;  // keys, which stay where they are until erased
  std::vector<std::list<Inbound>::iterator> guests;
  const auto events_of = [](Connection& connection, bool read) {
    return static_cast<short>((read ? POLLIN : 0) | (connection.wants_write() ? POLLOUT : 0));
  };
  for (auto& [address, peer] : peers_) {
    fds.push_back({peer->connection().fd(), events_of(peer->connection(), true), 0});
    addresses.push_back(&address);
  }
  for (auto guest = guests_.begin(); guest != guests_.end(); ++guest) {
    Connection& connection = guest->connection();
    fds.push_back({connection.fd(), events_of(connection, !guest->full()), 0});
    guests.push_back(guest);
  }
  timespec timeout{};
  timeout.tv_nsec = static_cast<long>(limit.count());  // always under a second
  if (ppoll(fds.data(), fds.size(), &timeout, nullptr) <= 0) return;
  if ((fds[0].revents & POLLIN) != 0) wake_.drain();
  heard_ = true;
  constexpr short kReadable = POLLIN | POLLHUP | POLLERR;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const short events = fds[2 + i].revents;
    if (events == 0) continue;
    const auto it = peers_.find(*addresses[i]);
    Status status;
    if ((events & POLLOUT) != 0) status = it->second->connection().flush();
    if (status && (events & kReadable) != 0) status = it->second->read();
    if (!status) lose(std::string(*addresses[i]), status.error());
  }
  for (size_t i = 0; i < guests.size(); ++i) {
    const short events = fds[2 + addresses.size() + i].revents;
    if (events == 0) continue;
    Status status;
    if ((events & POLLOUT) != 0) status = guests[i]->connection().flush();
    if (status && (events & kReadable) != 0) status = guests[i]->read();
    if (!status) lose(guests[i], status.error());
  }
  if ((fds[1].revents & POLLIN) != 0) accept_connections();
}

// A transfer to itself (a self-test) says nothing about other processes.
void DirectTransport::name_links() {
  std::set<std::string> links;
  for (const auto& [address, peer] : peers_) {
    if (peer->receiver() != core_.self) links.insert(peer->detail());
  }
  for (const Inbound& guest : guests_) {
    if (guest.sender() != core_.self) links.insert(guest.detail());
  }
  links.erase("");
  if (links.empty() || std::ranges::includes(links_, links)) return;
  links_.merge(links);
  std::string text;
  for (const std::string& link : links_) text += (text.empty() ? "" : ", ") + link;
  set_links(std::move(text));
}

// A connection to this process served a self-test, and keeps memory of the device.
void DirectTransport::drop_self() {
  for (auto it = peers_.begin(); it != peers_.end();) {
    const bool over = it->second->receiver() == core_.self && it->second->idle() &&
                      !it->second->busy() && !sends_.uses(it->first);
    it = over ? peers_.erase(it) : std::next(it);
  }
}

void DirectTransport::sweep(TimePoint now) {
  sweep_transfers(now);
  drop_self();
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const auto here = guest++;
    if (here->sender() || now - here->since() < kGreetingTime) continue;
    lose(here, make_error(ErrorCode::kTransport, "it never said who it is"));
  }
}

}  // namespace

Result<std::unique_ptr<ThreadedTransport>> create_direct_transport(
    std::unique_ptr<Fabric> fabric, const TransportDeps& deps,
    std::function<void(const std::string&)> on_warning, std::shared_ptr<ReceiveSide> side,
    const DirectWays& ways) {
  auto transport = std::make_unique<DirectTransport>(std::move(fabric), deps, std::move(on_warning),
                                                     std::move(side), ways);
  TANDEM_TRY(transport->start());
  return transport;
}

}  // namespace tandem::transport
