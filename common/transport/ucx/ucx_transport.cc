#include "common/transport/ucx/ucx_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/transport/direct/direct_transport.h"
#include "common/transport/direct/wire_format.h"
#include "common/transport/shm/shm_fabric.h"
#include "common/transport/ucx/address.h"
#include "common/transport/ucx/network_transport.h"
#include "common/transport/ucx/ucx_log.h"
#include "common/transport/ucx/worker.h"

namespace tandem::transport {
namespace {

constexpr std::string_view kDefaultTls = "shm,tcp,self";
constexpr std::array<std::string_view, 8> kSharedMemory = {"shm",  "sm",  "mm",    "posix",
                                                           "sysv", "cma", "xpmem", "knem"};

// What a list of transports in UCX's words asks for. UCX never gets one with shared memory.
struct Ways {
  bool local = false;
  std::string ucx;  // for UCX itself
};
Ways ways_of(std::string_view tls) {
  const bool all_but = tls.starts_with('^');
  bool named = false;
  std::string others;
  for (size_t at = all_but ? 1 : 0; at <= tls.size();) {
    const size_t end = std::min(tls.find(',', at), tls.size());
    const std::string_view word = tls.substr(at, end - at);
    at = end + 1;
    if (std::ranges::find(kSharedMemory, word) != kSharedMemory.end()) {
      named = true;
    } else if (!word.empty()) {
      (others += others.empty() ? "" : ",") += word;
    }
  }
  if (all_but || others == "all") {
    const bool more = all_but && !others.empty();
    return {.local = !all_but || !named, .ucx = "^sm" + (more ? "," + others : "")};
  }
  return {.local = named, .ucx = others.empty() ? "self" : others};
}

std::string join(const std::string& a, const std::string& b) {
  return a.empty() || b.empty() ? a + b : a + ", " + b;
}

// Sends each transfer the way its receiver's address allows; both ways lead to the same pages.
class UcxTransport final : public Transport, private TransportEvents {
 public:
  UcxTransport(const UcxOptions& options, const TransportDeps& deps)
      : on_warning_(options.on_warning),
        events_(deps.events),
        staged_(deps.memory != nullptr && !deps.memory->device().empty()) {}
  Status start(const Ways& ways, const TransportDeps& deps);

  std::string_view name() const override { return "ucx"; }
  std::string detail() const override {
    std::string used = join(local_ ? local_->links() : "", network_->links());
    if (used.empty()) {
      std::string may = local_ ? "shared memory" : "";
      for (const std::string& name : network_->available()) may = join(may, name);
      used = "not connected yet; may use " + may;
    }
    return "ucx " + UcxWorker::version() + ": " + used +
           (staged_ ? "; device memory through pinned host buffers" : "");
  }
  std::string address() const override { return address_; }
  TransportCounters counters() const override { return network_->counters(); }

  Status open_receive(ReceivePlan plan) override {
    return receiver().open_receive(std::move(plan));
  }
  void close_receive(TransferId id) override { receiver().close_receive(id); }
  void fence(Generation sender) override { receiver().fence(sender); }
  void readmit(Generation sender) override { receiver().readmit(sender); }

  void meet(const std::string& name, const std::string& receiver) override;
  Status open_send(const SendSpec& spec) override;
  Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                    std::span<const std::span<const std::byte>> pages) override {
    return way_of(id).post_pages(id, layer, first_page, pages);
  }
  Status post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page) override {
    return way_of(id).post_tail(id, layer, page);
  }
  Status post_commit(TransferId id, std::string commit) override {
    return way_of(id).post_commit(id, std::move(commit));
  }
  void cancel_send(TransferId id, std::string reason) override {
    way_of(id).cancel_send(id, std::move(reason));
  }

 private:
  // Of both ways' threads.
  void on_received(TransferId id, std::string commit, const ReceiveStats& stats) override {
    events_.on_received(id, std::move(commit), stats);
  }
  void on_receive_failed(TransferId id, Error error) override {
    events_.on_receive_failed(id, std::move(error));
  }
  void on_sent(TransferId id, const SendStats& stats) override {
    forget(id);
    events_.on_sent(id, stats);
  }
  void on_send_failed(TransferId id, Error error) override {
    forget(id);
    events_.on_send_failed(id, std::move(error));
  }
  void on_meet_failed(const std::string& name, const Error& error) override {
    events_.on_meet_failed(name, error);
  }

  // Receives are open for both ways: either's thread sweeps their deadlines.
  [[nodiscard]] Transport& receiver() const {
    return local_ ? static_cast<Transport&>(*local_) : *network_;
  }
  [[nodiscard]] bool reaches_locally(const UcxAddress& to);
  struct Way {
    Transport& transport;
    std::string address;  // of the receiver, as this way names it
  };
  [[nodiscard]] Result<Way> way_to(const std::string& receiver);
  // Where nothing is open under that id: any way, to say so.
  [[nodiscard]] Transport& way_of(TransferId id) {
    std::lock_guard lock(mutex_);
    return by_local_.contains(id) ? static_cast<Transport&>(*local_) : *network_;
  }
  void forget(TransferId id) {
    std::lock_guard lock(mutex_);
    by_local_.erase(id);
  }

  const std::function<void(const std::string&)> on_warning_;
  TransportEvents& events_;
  const bool staged_;
  std::string address_;
  uint64_t reach_ = 0;  // equal in the local addresses of processes that reach each other
  std::atomic<bool> warned_{false};

  std::mutex mutex_;
  std::unordered_set<TransferId> by_local_;  // open sends; the others go over the network

  // In this order: until its end the network may wait for copies of the local way (ReceiveSide).
  std::unique_ptr<ThreadedTransport> local_;  // null: not wanted
  std::unique_ptr<NetworkTransport> network_;
};

Status UcxTransport::start(const Ways& ways, const TransportDeps& given) {
  TransportDeps deps{given.self, given.clock, *this, given.limits, given.memory};
  const auto side = std::make_shared<ReceiveSide>(deps);
  if (ways.local) {
    TANDEM_ASSIGN(local_,
                  create_direct_transport(create_shm_fabric(deps.memory), deps, on_warning_, side));
  }
  TANDEM_ASSIGN(network_, create_network_transport({ways.ucx, on_warning_}, deps, side));
  TANDEM_ASSIGN(UcxAddress address, parse_ucx_address(network_->address()));
  if (local_) {
    address.local = local_->address();
    TANDEM_ASSIGN(const DirectAddress local, parse_direct_address(address.local));
    reach_ = local.host;
  }
  address_ = encode_ucx_address(address);
  return {};
}

bool UcxTransport::reaches_locally(const UcxAddress& to) {
  if (!local_ || to.local.empty()) return false;
  const auto local = parse_direct_address(to.local);
  if (local && local->host == reach_) return true;
  if (to.host == this_host() && on_warning_ && !warned_.exchange(true)) {
    on_warning_(
        "a peer on this host is not reached over shared memory but over UCX, because it runs as "
        "another user or in another network namespace");
  }
  return false;
}

Result<UcxTransport::Way> UcxTransport::way_to(const std::string& receiver) {
  TANDEM_ASSIGN(UcxAddress to, parse_ucx_address(receiver));
  if (reaches_locally(to)) return Way{*local_, to.local};
  to.local.clear();  // as the peer itself names this way
  return Way{*network_, encode_ucx_address(to)};
}

void UcxTransport::meet(const std::string& name, const std::string& receiver) {
  const auto way = way_to(receiver);
  if (!way) return on_meet_failed(name, way.error());
  way->transport.meet(name, way->address);
}

Status UcxTransport::open_send(const SendSpec& spec) {
  TANDEM_ASSIGN(Way way, way_to(spec.address));
  SendSpec part = spec;
  part.address = std::move(way.address);
  if (&way.transport == network_.get()) return network_->open_send(part);
  {
    std::lock_guard lock(mutex_);
    if (!by_local_.insert(spec.id).second) {
      return fail(ErrorCode::kInvalidArgument, "this transfer is being sent already");
    }
  }
  Status opened = local_->open_send(part);
  if (!opened) forget(spec.id);
  return opened;
}

}  // namespace

Result<std::unique_ptr<Transport>> create_ucx_transport(const UcxOptions& options,
                                                        const TransportDeps& deps) {
  const Ways ways = ways_of(options.tls.empty() ? kDefaultTls : options.tls);
  auto transport = std::make_unique<UcxTransport>(options, deps);
  TANDEM_TRY(transport->start(ways, deps));
  return transport;
}

Status check_ucx(const UcxOptions& options) {
  const Ways ways = ways_of(options.tls.empty() ? kDefaultTls : options.tls);
  const UcxLog log(options.on_warning ? options.on_warning : [](const std::string&) {});
  const auto worker =
      UcxWorker::create({.tls = ways.ucx}, {.on_message = {}, .on_endpoint_failed = {}});
  return worker ? Status() : fail(worker.error());
}

}  // namespace tandem::transport
