#include "common/transport/inproc/inproc.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <random>
#include <utility>

namespace tandem::transport {
namespace {

constexpr std::string_view kScheme = "inproc:";

Status check_address(const std::string& receiver) {
  if (receiver.starts_with(kScheme)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "'" + receiver + "' is not the address of an inproc transport", "address");
}
constexpr Duration kPumpNap = std::chrono::milliseconds(2);

Error gone(const std::string& address) {
  return make_error(ErrorCode::kTransport, "the peer at " + address + " is gone");
}

}  // namespace

struct InprocHub::Impl {
  struct InFlight {
    std::string from;
    std::string to;
    Frame frame;
  };
  struct Member {
    InprocTransport* transport = nullptr;
    size_t in_flight = 0;  // its frames that were not delivered yet
  };
  struct Action {
    const InprocTransport* owner;
    std::function<void()> run;
  };

  explicit Impl(const Clock& c) : clock(c) {}

  const Clock& clock;
  // Serializes deliveries and events; held while handlers run, so they must not destroy a
  // transport.
  std::recursive_mutex stepping;
  // Guards everything below; never held while a handler or a table runs.
  mutable std::mutex mutex;
  std::condition_variable posted;
  std::map<std::string, Member> members;  // by address; ordered, so that runs repeat
  std::map<std::pair<TimePoint, uint64_t>, InFlight> frames;  // by due time, then order of sending
  std::deque<Action> actions;
  FaultHook hook;
  uint64_t next_sequence = 0;
  std::optional<TimePoint> last_sweep;

  // False when the sender's queue is full (`bounded`); true for whatever becomes of the frame then.
  bool send(const std::string& from, const std::string& to, Frame frame, bool bounded);
  void act(const InprocTransport* owner, std::function<void()> run);
  bool sweep_if_time_moved();
  bool run_action();
  bool deliver_one();
  void remove(const std::string& address, const InprocTransport* transport);
  std::vector<InprocTransport*> everyone() const;
};

// The transport of one member of a hub.
class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocHub::Impl> hub, std::string address,
                  const TransportDeps& deps)
      : hub_(std::move(hub)),
        address_(std::move(address)),
        self_(deps.self),
        receives_(deps, counters_),
        sends_(deps, counters_),
        limit_(deps.limits.max_queued_frames),
        events_(deps.events) {}
  ~InprocTransport() override { hub_->remove(address_, this); }

  std::string_view name() const override { return "inproc"; }
  std::string detail() const override { return "inproc: memory of this process"; }
  std::string address() const override { return address_; }
  TransportCounters counters() const override { return counters_.snapshot(); }

  Status open_receive(ReceivePlan plan) override { return receives_.open(std::move(plan)); }
  void close_receive(TransferId id) override { receives_.close(id); }
  void fence(Generation sender) override {
    receives_.shut_out(sender);
    hub_->act(this, [this, sender] { receives_.end_shut_out(sender); });
  }
  void readmit(Generation sender) override { receives_.readmit(sender); }

  void meet(const std::string& name, const std::string& receiver) override {
    if (const Status known = check_address(receiver); !known) {
      events_.on_meet_failed(name, known.error());
    }
  }
  Status open_send(const SendSpec& spec) override {
    TANDEM_TRY(check_address(spec.address));
    TANDEM_TRY(sends_.open(spec));
    bool known = false;
    {
      std::lock_guard lock(hub_->mutex);
      known = hub_->members.contains(spec.address);
    }
    if (!known) end_later(spec.id, gone(spec.address));
    return {};
  }
  Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                    std::span<const std::span<const std::byte>> pages) override {
    if (pages.empty()) return {};
    TANDEM_TRY(checked(id, sends_.post_pages(id, layer, first_page, pages)));
    return for_each_frame(first_page, pages, [&](uint32_t first, auto part) {
      return post(id, [&](const SendTable::Route& route) {
        return make_data_frame(route.origin, layer, first, part);
      });
    });
  }
  Status post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page) override {
    TANDEM_TRY(checked(id, sends_.post_tail(id, layer, page)));
    return post(id, [&](const SendTable::Route& route) {
      return make_page_frame(route.origin, proto::KvFrameKind::kTail, layer, 0, route.tail_rows,
                             PageIo(nullptr).read(route.tail, page).value());
    });
  }
  Status post_commit(TransferId id, std::string commit) override {
    TANDEM_TRY(checked(id, sends_.post_commit(id, commit.size())));
    return post(
        id, [&](const SendTable::Route& route) { return make_commit_frame(route.origin, commit); });
  }
  void cancel_send(TransferId id, std::string reason) override {
    const Error error = make_error(ErrorCode::kCancelled, std::move(reason));
    hub_->act(this, [this, id, error] { end_now(id, error, proto::KvFrameKind::kCancel); });
  }

  // ---- called by the hub, one at a time, without its mutex ----
  void on_frame(const std::string& from, const Frame& frame) {
    counters_.count_received(frame.wire_bytes());
    const auto header = proto::parse_kv_header(frame.header);
    if (!header) {
      const bool checksum = header.error().code == ErrorCode::kCorruptData;
      (checksum ? counters_.rejected_checksum : counters_.rejected_malformed).fetch_add(1);
      return;
    }
    const bool answer =
        header->kind == proto::KvFrameKind::kAck || header->kind == proto::KvFrameKind::kReject;
    if (answer) {
      sends_.deliver(*header, frame.payload);
    } else if (const auto reply = receives_.deliver(*header, frame.payload)) {
      send_unbounded(from, reply->frame());
    }
  }
  void sweep(TimePoint now) {
    receives_.sweep(now);
    for (const SendTable::Route& route : sends_.sweep(now)) {
      const Error late = make_error(ErrorCode::kDeadlineExceeded, "the sender's deadline passed");
      send_unbounded(route.address,
                     make_reason_frame(route.origin, proto::KvFrameKind::kError, late));
    }
  }
  void peer_gone(const std::string& address, Generation generation) {
    sends_.end_all(address, generation, gone(address));
    receives_.sender_lost(generation, gone(address));
  }
  [[nodiscard]] Generation self() const { return self_; }
  [[nodiscard]] size_t limit() const { return limit_; }

 private:
  // A post that fails ends its transfer.
  Status checked(TransferId id, Status status) {
    if (!status) end_later(id, status.error());
    return status;
  }
  template <typename MakeFrame>
  Status post(TransferId id, const MakeFrame& make) {
    const auto route = sends_.route(id);
    if (!route) return fail(ErrorCode::kNotFound, "the transfer has ended");
    Frame frame = make(*route);
    sends_.count_frame(id, frame.wire_bytes());  // before the ack can come
    if (!hub_->send(address_, route->address, std::move(frame), true)) {
      return checked(
          id, fail(ErrorCode::kQueueFull,
                   "all " + std::to_string(limit_) + " frames of the send queue are in flight"));
    }
    return {};
  }
  void end_later(TransferId id, const Error& error) {
    hub_->act(this, [this, id, error] { end_now(id, error, proto::KvFrameKind::kError); });
  }
  void end_now(TransferId id, const Error& error, proto::KvFrameKind kind) {
    if (const auto route = sends_.end(id, error)) {
      send_unbounded(route->address, make_reason_frame(route->origin, kind, error));
    }
  }
  // Answers and endings: at most one for each frame received or transfer opened.
  void send_unbounded(const std::string& to, Frame frame) {
    counters_.count_sent(frame.wire_bytes());
    (void)hub_->send(address_, to, std::move(frame), false);
  }

  const std::shared_ptr<InprocHub::Impl> hub_;
  const std::string address_;
  const Generation self_;
  AtomicCounters counters_;
  ReceiveTable receives_;
  SendTable sends_;
  const size_t limit_;
  TransportEvents& events_;
};

bool InprocHub::Impl::send(const std::string& from, const std::string& to, Frame frame,
                           bool bounded) {
  std::lock_guard lock(mutex);
  const auto sender = members.find(from);
  if (sender == members.end()) return true;  // killed: its frames are lost
  if (bounded && sender->second.in_flight >= sender->second.transport->limit()) return false;
  FrameFault fault;
  const auto header = proto::parse_kv_header(frame.header);
  if (hook && header) fault = hook({from, to, *header, frame.payload.size()});
  if (fault.drop) return true;
  if (fault.corrupt_header) frame.header[40] ^= std::byte{4};
  if (fault.corrupt_payload && !frame.payload.empty()) {
    frame.payload[frame.payload.size() / 2] ^= std::byte{1};
  }
  for (uint32_t copy = 0; copy < fault.copies; ++copy) {
    frames.emplace(std::pair(clock.now() + fault.delay, next_sequence++),
                   InFlight{from, to, frame});
    ++sender->second.in_flight;
  }
  posted.notify_one();
  return true;
}

void InprocHub::Impl::act(const InprocTransport* owner, std::function<void()> run) {
  std::lock_guard lock(mutex);
  actions.push_back({owner, std::move(run)});
  posted.notify_one();
}

std::vector<InprocTransport*> InprocHub::Impl::everyone() const {
  std::lock_guard lock(mutex);
  std::vector<InprocTransport*> all;
  for (const auto& [address, member] : members) all.push_back(member.transport);
  return all;
}

bool InprocHub::Impl::sweep_if_time_moved() {
  const TimePoint now = clock.now();
  if (last_sweep == now) return false;
  last_sweep = now;
  for (InprocTransport* transport : everyone()) transport->sweep(now);
  return true;
}

bool InprocHub::Impl::run_action() {
  Action action;
  {
    std::lock_guard lock(mutex);
    if (actions.empty()) return false;
    action = std::move(actions.front());
    actions.pop_front();
  }
  action.run();
  return true;
}

bool InprocHub::Impl::deliver_one() {
  InFlight in_flight;
  InprocTransport* target = nullptr;
  {
    std::lock_guard lock(mutex);
    if (frames.empty() || frames.begin()->first.first > clock.now()) return false;
    in_flight = std::move(frames.begin()->second);
    frames.erase(frames.begin());
    if (const auto from = members.find(in_flight.from); from != members.end()) {
      --from->second.in_flight;
    }
    if (const auto to = members.find(in_flight.to); to != members.end()) {
      target = to->second.transport;
    }
  }
  if (target != nullptr) target->on_frame(in_flight.from, in_flight.frame);
  return true;
}

void InprocHub::Impl::remove(const std::string& address, const InprocTransport* transport) {
  std::lock_guard serial(stepping);
  Generation generation;
  {
    std::lock_guard lock(mutex);
    std::erase_if(actions, [&](const Action& a) { return a.owner == transport; });
    const auto it = members.find(address);
    if (it == members.end() || it->second.transport != transport) return;
    generation = transport->self();
    members.erase(it);
    std::erase_if(frames, [&](const auto& entry) { return entry.second.from == address; });
  }
  for (InprocTransport* other : everyone()) {
    act(other, [other, address, generation] { other->peer_gone(address, generation); });
  }
}

InprocHub::InprocHub(const Clock& clock) : impl_(std::make_shared<Impl>(clock)) {}
InprocHub::~InprocHub() = default;

std::unique_ptr<Transport> InprocHub::create(const std::string& name, const TransportDeps& deps) {
  const std::string address = std::string(kScheme) + name;
  kill(name);
  auto transport = std::make_unique<InprocTransport>(impl_, address, deps);
  std::lock_guard lock(impl_->mutex);
  impl_->members[address] = {transport.get(), 0};
  return transport;
}

bool InprocHub::step() {
  std::lock_guard serial(impl_->stepping);
  (void)impl_->sweep_if_time_moved();
  return impl_->run_action() || impl_->deliver_one();
}

size_t InprocHub::run(size_t limit) {
  size_t steps = 0;
  while (steps < limit && step()) ++steps;
  return steps;
}

std::optional<TimePoint> InprocHub::next_due() const {
  std::lock_guard lock(impl_->mutex);
  if (!impl_->actions.empty()) return impl_->clock.now();
  if (impl_->frames.empty()) return std::nullopt;
  return impl_->frames.begin()->first.first;
}

void InprocHub::set_fault_hook(FaultHook hook) {
  std::lock_guard lock(impl_->mutex);
  impl_->hook = std::move(hook);
}

void InprocHub::inject(const std::string& name, Frame frame) {
  std::lock_guard lock(impl_->mutex);
  impl_->frames.emplace(std::pair(impl_->clock.now(), impl_->next_sequence++),
                        Impl::InFlight{"nobody", std::string(kScheme) + name, std::move(frame)});
  impl_->posted.notify_one();
}

void InprocHub::kill(const std::string& name) {
  const std::string address = std::string(kScheme) + name;
  const InprocTransport* transport = nullptr;
  {
    std::lock_guard lock(impl_->mutex);
    const auto it = impl_->members.find(address);
    if (it == impl_->members.end()) return;
    transport = it->second.transport;
  }
  impl_->remove(address, transport);
}

InprocPump::InprocPump(InprocHub& hub)
    : thread_([&hub, impl = hub.impl_](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          while (hub.step()) {
          }
          // Delayed frames and deadlines need no more precision than the nap.
          std::unique_lock lock(impl->mutex);
          impl->posted.wait_for(lock, kPumpNap);
        }
      }) {}
InprocPump::~InprocPump() = default;

FaultHook random_faults(const RandomFaults& faults) {
  return [faults, random = std::mt19937_64(faults.seed)](const FrameInfo&) mutable {
    // Own arithmetic: standard distributions differ between libraries.
    const auto chance = [&](double p) { return static_cast<double>(random() >> 11) * 0x1p-53 < p; };
    FrameFault fault;
    fault.drop = chance(faults.drop);
    fault.copies = chance(faults.duplicate) ? 2 : 1;
    fault.corrupt_payload = chance(faults.corrupt);
    if (chance(faults.delay) && faults.max_delay > Duration::zero()) {
      fault.delay = Duration(
          static_cast<Duration::rep>(random() % static_cast<uint64_t>(faults.max_delay.count())));
    }
    return fault;
  };
}

}  // namespace tandem::transport
