#include "common/transport/ucx/ucx_fabric.h"

#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/unique_handle.h"
#include "common/transport/direct/slot_link.h"
#include "common/transport/direct/wire_format.h"
#include "common/transport/ucx/address.h"
#include "common/transport/ucx/ucp_handles.h"
#include "common/transport/ucx/worker.h"

namespace tandem::transport {
namespace {

constexpr Duration kGreetingTime = std::chrono::seconds(10);
// A message takes well under a millisecond.
constexpr Duration kOperationTime = std::chrono::seconds(2);
constexpr Duration kGoodbye = std::chrono::milliseconds(300);

Result<UniqueHandle<UcpContextTraits>> open_context(const std::string& tls) {
  ucp_config_t* raw = nullptr;
  if (const ucs_status_t s = ucp_config_read(nullptr, nullptr, &raw); s != UCS_OK) {
    return fail(ucx_error("reading its configuration", s));
  }
  const UniqueHandle<UcpConfigTraits> config(raw);
  const std::pair<const char*, const char*> settings[] = {{"TLS", tls.c_str()},
                                                          {"MM_ERROR_HANDLING", "y"}};
  for (const auto& [name, value] : settings) {
    if (const ucs_status_t s = ucp_config_modify(raw, name, value); s != UCS_OK) {
      return fail(ErrorCode::kConfig,
                  "UCX refuses " + std::string(name) + "=" + value + ": " + ucs_status_string(s));
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  if (const ucs_status_t s = ucp_init(&params, raw, &context); s != UCS_OK) {
    return fail(ErrorCode::kConfig,
                "UCX finds no usable transport among '" + tls + "': " + ucs_status_string(s));
  }
  return UniqueHandle<UcpContextTraits>(context);
}

// A send or receive under way. Empty requests are done.
class Request {
 public:
  Request() = default;
  explicit Request(void* handle) : handle_(handle) {}
  // Whether it has ended; an error is its outcome.
  Result<bool> done() {
    if (handle_ == nullptr) return true;
    if (UCS_PTR_IS_ERR(handle_)) {
      return fail(ucx_error("a message", UCS_PTR_STATUS(std::exchange(handle_, nullptr))));
    }
    const ucs_status_t status = ucp_request_check_status(handle_);
    if (status == UCS_INPROGRESS) return false;
    ucp_request_free(std::exchange(handle_, nullptr));
    if (status != UCS_OK) return fail(ucx_error("a message", status));
    return true;
  }
  void cancel(ucp_worker_h worker) const {
    if (UCS_PTR_IS_PTR(handle_)) ucp_request_cancel(worker, handle_);
  }

 private:
  void* handle_ = nullptr;
};

struct Shared {
  ucp_worker_h worker = nullptr;
  ucs_memory_type_t memory = UCS_MEMORY_TYPE_HOST;
};

class UcxLink final : public SlotLink {
 public:
  UcxLink(const Shared& shared, const Slots& slots, bool sender, uint32_t pair)
      : SlotLink(slots, sender), shared_(shared), pair_(pair), progress_at_(clock_.now()) {}
  ~UcxLink() override;
  Status connect(const std::string& worker);
  void greet();

  std::string detail() const override { return "device memory"; }
  Result<bool> ready() override {
    TANDEM_TRY(pump());
    return greeted_;
  }
  bool busy() const override { return !greeted_ || !flying_.empty(); }

 private:
  static constexpr uint64_t kGreeting = 0;  // no message has this id
  [[nodiscard]] ucp_tag_t tag(uint64_t id) const { return uint64_t{pair_} << 32 | id; }
  Status send(const Message& message) override {
    return start(message, send(message.data, message.bytes, message.id, shared_.memory));
  }
  Status receive(const Message& message) override {
    return start(message, receive(message.data, message.bytes, message.id, shared_.memory));
  }
  Status start(const Message& message, Request request);
  Request send(const void* data, size_t bytes, uint64_t id, ucs_memory_type_t memory) const;
  Request receive(void* data, size_t bytes, uint64_t id, ucs_memory_type_t memory) const;
  Status pump();

  const Shared shared_;
  const uint32_t pair_;  // names this connection in tags
  SteadyClock clock_;
  TimePoint progress_at_;
  ucp_ep_h endpoint_ = nullptr;
  uint64_t greeting_ = 0;
  bool greeted_ = false;
  std::map<uint64_t, Request> flying_;  // by message
};

Status UcxLink::start(const Message& message, Request request) {
  if (message.id > UINT32_MAX) {
    return fail(ErrorCode::kTransport, "ucx: a connection's numbers are used up");
  }
  flying_[message.id] = request;
  return {};
}

Request UcxLink::send(const void* data, size_t bytes, uint64_t id, ucs_memory_type_t memory) const {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = memory;
  return Request(ucp_tag_send_nbx(endpoint_, data, bytes, tag(id), &param));
}

Request UcxLink::receive(void* data, size_t bytes, uint64_t id, ucs_memory_type_t memory) const {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = memory;
  return Request(ucp_tag_recv_nbx(shared_.worker, data, bytes, tag(id), ~ucp_tag_t{0}, &param));
}

Status UcxLink::connect(const std::string& worker) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  const ucs_status_t s = ucp_ep_create(shared_.worker, &params, &endpoint_);
  if (s != UCS_OK) return fail(ucx_error("connecting to the peer", s));
  return {};
}

// The first message, of host memory: connects the workers before pages depend on it.
void UcxLink::greet() {
  flying_[kGreeting] =
      sender() ? send(&greeting_, sizeof(greeting_), kGreeting, UCS_MEMORY_TYPE_HOST)
               : receive(&greeting_, sizeof(greeting_), kGreeting, UCS_MEMORY_TYPE_HOST);
}

UcxLink::~UcxLink() {
  void* closing = nullptr;
  if (endpoint_ != nullptr) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing = ucp_ep_close_nbx(endpoint_, &param);
  }
  for (auto& [id, request] : flying_) request.cancel(shared_.worker);
  Request close(closing);
  bool closed = false;
  const TimePoint give_up = clock_.now() + kGoodbye;
  while ((!closed || !flying_.empty()) && clock_.now() < give_up) {
    ucp_worker_progress(shared_.worker);
    if (!closed) closed = close.done().value_or(true);
    for (auto it = flying_.begin(); it != flying_.end();) {
      it = it->second.done().value_or(true) ? flying_.erase(it) : std::next(it);
    }
  }
  // What is still flying may yet be written or read.
  for (const auto& [id, request] : flying_) lose(id);
}

Status UcxLink::pump() {
  while (ucp_worker_progress(shared_.worker) != 0) {
  }
  const TimePoint now = clock_.now();
  for (auto it = flying_.begin(); it != flying_.end();) {
    TANDEM_ASSIGN(const bool done, it->second.done());
    if (!done) {
      ++it;
      continue;
    }
    const uint64_t id = it->first;
    it = flying_.erase(it);
    progress_at_ = now;
    if (id == kGreeting) {
      greeted_ = true;
    } else {
      ended(id);
    }
  }
  if (flying_.empty()) progress_at_ = now;
  if (now - progress_at_ > (greeted_ ? kOperationTime : kGreetingTime)) {
    return fail(ErrorCode::kDeadlineExceeded,
                "ucx: the peer did not take part in a transfer in time");
  }
  return {};
}

class UcxFabric final : public Fabric {
 public:
  explicit UcxFabric(UcxFabricOptions options)
      : options_(std::move(options)),
        sends_(options_.memory.get(), options_.ways.sends ? options_.slot_bytes : 0),
        receives_(options_.memory.get() + (options_.ways.sends ? options_.slot_bytes : 0),
                  options_.ways.receives ? options_.slot_bytes : 0) {}

  std::string_view name() const override { return "ucx"; }
  std::string version() const override { return UcxWorker::version(); }
  PageCopier& copier(bool sender) override { return options_.copiers.of(sender); }
  size_t frame_bytes() const override { return options_.frame_bytes; }
  bool stays_awake() const override { return true; }
  Status start() override;
  Result<std::string> hello(bool sender) override;
  Result<std::unique_ptr<Link>> open(bool sender, const std::string& own,
                                     const std::string& peer) override;

 private:
  struct PeerHello {
    std::string version;
    uint32_t pair = 0;  // a sender's, one for each connection
    std::string worker;
  };
  static Result<PeerHello> parse(const std::string& text) {
    FieldReader fields(text);
    PeerHello hello;
    hello.version = fields.text();
    hello.pair = fields.get<uint32_t>();
    const std::string_view envelope = fields.text();
    if (!fields.complete()) return fail(ErrorCode::kCorruptData, "ucx: a hello is malformed");
    TANDEM_ASSIGN(UcxAddress address, parse_ucx_address(envelope));
    hello.worker = std::move(address.worker);
    return hello;
  }

  UcxFabricOptions options_;
  SlotSpace sends_;
  SlotSpace receives_;
  std::random_device random_;
  std::string address_;
  UniqueHandle<UcpContextTraits> context_;
  UniqueHandle<UcpWorkerTraits> worker_;  // last: destroyed before its context
};

Status UcxFabric::start() {
  if (options_.on_thread) TANDEM_TRY(options_.on_thread());
  TANDEM_ASSIGN(context_, open_context(options_.tls));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  if (const ucs_status_t s = ucp_worker_create(context_.get(), &params, &worker); s != UCS_OK) {
    return fail(ucx_error("creating a worker", s));
  }
  worker_.reset(worker);
  ucp_address_t* own = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t s = ucp_worker_get_address(worker, &own, &bytes); s != UCS_OK) {
    return fail(ucx_error("reading the worker's address", s));
  }
  address_.assign(reinterpret_cast<const char*>(own), bytes);
  ucp_worker_release_address(worker, own);
  return {};
}

Result<std::string> UcxFabric::hello(bool sender) {
  const uint32_t pair = sender ? random_() : 0;
  return FieldWriter()
      .text(version())
      .put(pair)
      .text(encode_ucx_address({.host = this_host(), .worker = address_}))
      .take();
}

Result<std::unique_ptr<Link>> UcxFabric::open(bool sender, const std::string& own,
                                              const std::string& peer_hello) {
  TANDEM_ASSIGN(const PeerHello mine, parse(own));
  TANDEM_ASSIGN(const PeerHello peer, parse(peer_hello));
  if (peer.version != mine.version) {
    return fail(ErrorCode::kMismatch, "ucx: UCX " + mine.version + " here and UCX " + peer.version +
                                          " at the peer; use one version for device memory");
  }
  const Shared shared{worker_.get(), options_.cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST};
  const SlotLink::Slots slots{name(), sends_, receives_, options_.frame_bytes,
                              options_.message_bytes};
  auto link = std::make_unique<UcxLink>(shared, slots, sender, sender ? mine.pair : peer.pair);
  if (sender) TANDEM_TRY(link->connect(peer.worker));
  link->greet();
  return link;
}

}  // namespace

Result<std::unique_ptr<Fabric>> create_ucx_fabric(UcxFabricOptions options) {
  return std::make_unique<UcxFabric>(std::move(options));
}

Result<bool> ucx_knows_cuda(const std::string& tls) {
  TANDEM_ASSIGN(const auto context, open_context(tls));
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (const ucs_status_t s = ucp_context_query(context.get(), &attributes); s != UCS_OK) {
    return fail(ucx_error("asking which memory it knows", s));
  }
  return (attributes.memory_types >> UCS_MEMORY_TYPE_CUDA & 1) != 0;
}

}  // namespace tandem::transport
