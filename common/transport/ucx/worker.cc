#include "common/transport/ucx/worker.h"

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/base/clock.h"
#include "common/base/unique_handle.h"

namespace tandem::transport {
namespace {

constexpr unsigned kFrameMessage = 11;  // the one active-message id in use
// A dead process on this box is noticed by asking the kernel, at this interval; TCP notices by
// itself.
constexpr const char* kKeepalive = "200ms";
constexpr auto kDrain = std::chrono::milliseconds(500);

Error ucx_error(const std::string& what, ucs_status_t status) {
  return make_error(ErrorCode::kTransport, "UCX: " + what + ": " + ucs_status_string(status));
}

struct ConfigTraits {
  using Handle = ucp_config_t*;
  static Handle invalid() { return nullptr; }
  static void close(Handle h) noexcept { ucp_config_release(h); }
};
struct ContextTraits {
  using Handle = ucp_context_h;
  static Handle invalid() { return nullptr; }
  static void close(Handle h) noexcept { ucp_cleanup(h); }
};
struct WorkerTraits {
  using Handle = ucp_worker_h;
  static Handle invalid() { return nullptr; }
  static void close(Handle h) noexcept { ucp_worker_destroy(h); }
};

// What UCX prints into a stream: the only place where 1.13 tells which transports it uses.
template <typename Print>
std::string printed(Print print) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

// Names before "/" in words like "1:posix/memory.0" or "tcp/lo".
std::set<std::string> transport_names(const std::string& text) {
  static const std::set<std::string> kKnown = {
      "self",     "posix",   "sysv",    "cma",     "xpmem", "tcp",       "rc_verbs",
      "ud_verbs", "rc_mlx5", "ud_mlx5", "dc_mlx5", "knem",  "cuda_copy", "cuda_ipc"};
  std::set<std::string> names;
  for (size_t slash = text.find('/'); slash != std::string::npos;
       slash = text.find('/', slash + 1)) {
    size_t begin = slash;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0 ||
                         text[begin - 1] == '_')) {
      --begin;
    }
    const std::string name = text.substr(begin, slash - begin);
    if (kKnown.contains(name)) names.insert(name);
  }
  return names;
}

Status set_option(ucp_config_t* config, const char* name, const std::string& value) {
  const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
  if (status == UCS_OK) return {};
  return fail(ErrorCode::kConfig,
              "UCX refuses " + std::string(name) + "=" + value + ": " + ucs_status_string(status));
}

// Without this UCX leaves shared memory out of endpoints that report a peer's death, and takes TCP.
// Every version from 1.13 to 1.22 takes the key by this name; it warns where no shared memory is in
// use.
Status enable_peer_failure(ucp_config_t* config, const std::string& tls) {
  const bool shared =
      tls.find("posix") != std::string::npos || tls.find("sysv") != std::string::npos;
  return shared ? set_option(config, "MM_ERROR_HANDLING", "y") : Status();
}

}  // namespace

struct UcxWorker::Impl {
  struct Endpoint {
    Impl* owner = nullptr;
    EndpointId id = 0;
    ucp_ep_h handle = nullptr;
    bool failed = false;
  };
  // One send in flight: owns the bytes until UCX is done with them.
  struct Send {
    Impl* owner = nullptr;
    Frame frame;
    std::function<void(bool)> done;
    std::list<Send>::iterator self;
  };

  Callbacks callbacks;
  std::string address;
  std::set<std::string> available;
  int event_fd = -1;
  EndpointId next_endpoint = 1;
  std::unordered_map<EndpointId, std::unique_ptr<Endpoint>> endpoints;
  std::list<Send> sends;
  std::list<void*> closing;  // endpoint closes in progress
  // Last, so destroyed first: destroying the worker may still complete sends.
  UniqueHandle<ContextTraits> context;
  UniqueHandle<WorkerTraits> worker;

  void start_send(ucp_ep_h to, Frame frame, std::function<void(bool)> done);
  void finish(Send& send, bool ok) {
    auto done = std::move(send.done);
    sends.erase(send.self);
    if (done) done(ok);
  }
  void reap_closed();
  [[nodiscard]] bool drain();

  static void on_sent(void* request, ucs_status_t status, void* user) {
    auto& send = *static_cast<Send*>(user);
    ucp_request_free(request);
    send.owner->finish(send, status == UCS_OK);
  }
  static void on_error(void* arg, ucp_ep_h, ucs_status_t status) {
    auto& endpoint = *static_cast<Endpoint*>(arg);
    if (endpoint.failed) return;
    endpoint.failed = true;
    endpoint.owner->callbacks.on_endpoint_failed(endpoint.id, ucs_status_string(status));
  }
  static ucs_status_t on_message(void* arg, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param) {
    auto& impl = *static_cast<Impl*>(arg);
    // Our peers send eagerly; a rendezvous offer is a stranger's and is declined by not taking it.
    const bool whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    const std::span head(static_cast<const std::byte*>(header), header_length);
    const std::span body(static_cast<const std::byte*>(data), whole ? length : 0);
    std::optional<Frame> reply = impl.callbacks.on_frame(head, body);
    const bool can_reply = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    if (reply && can_reply) impl.start_send(param->reply_ep, std::move(*reply), {});
    return UCS_OK;
  }
};

void UcxWorker::Impl::start_send(ucp_ep_h to, Frame frame, std::function<void(bool)> done) {
  sends.push_back({this, std::move(frame), std::move(done), {}});
  Send& send = sends.back();
  send.self = std::prev(sends.end());
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &Impl::on_sent;
  param.user_data = &send;
  void* request =
      ucp_am_send_nbx(to, kFrameMessage, send.frame.header.data(), send.frame.header.size(),
                      send.frame.payload.data(), send.frame.payload.size(), &param);
  if (request == nullptr) {
    finish(send, true);
  } else if (UCS_PTR_IS_ERR(request)) {
    finish(send, false);
  }
  // Else on_sent() follows.
}

void UcxWorker::Impl::reap_closed() {
  std::erase_if(closing, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

// Sends what UCX itself has queued: a peer that just connected is answered over an endpoint of
// UCX's own, and UCX 1.13 takes an answer that still waits there when the worker is destroyed for a
// bug and aborts. Nothing waits when a flush is done at once; false when a peer that does not read
// keeps that from happening.
bool UcxWorker::Impl::drain() {
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + kDrain;
  while (clock.now() < give_up) {
    ucp_request_param_t param{};
    void* request = ucp_worker_flush_nbx(worker.get(), &param);
    if (!UCS_PTR_IS_PTR(request)) return request == nullptr;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && clock.now() < give_up) {
      ucp_worker_progress(worker.get());
    }
    ucp_request_free(request);
  }
  return false;
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const Options& options, Callbacks callbacks) {
  ucp_config_t* raw_config = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &raw_config); s != UCS_OK) {
    return fail(ucx_error("reading its configuration", s));
  }
  const UniqueHandle<ConfigTraits> config(raw_config);
  TANDEM_TRY(set_option(raw_config, "TLS", options.tls));
  TANDEM_TRY(set_option(raw_config, "KEEPALIVE_INTERVAL", kKeepalive));
  TANDEM_TRY(enable_peer_failure(raw_config, options.tls));

  auto impl = std::make_unique<Impl>();
  impl->callbacks = std::move(callbacks);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  if (ucs_status_t s = ucp_init(&params, raw_config, &context); s != UCS_OK) {
    return fail(ErrorCode::kConfig, "UCX finds no usable transport among '" + options.tls +
                                        "': " + ucs_status_string(s));
  }
  impl->context.reset(context);
  impl->available = transport_names(printed([&](FILE* f) { ucp_context_print_info(context, f); }));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  if (ucs_status_t s = ucp_worker_create(context, &worker_params, &worker); s != UCS_OK) {
    return fail(ucx_error("creating a worker", s));
  }
  impl->worker.reset(worker);
  if (ucs_status_t s = ucp_worker_get_efd(worker, &impl->event_fd); s != UCS_OK) {
    return fail(ucx_error("getting the event descriptor", s));
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrameMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Impl::on_message;
  handler.arg = impl.get();
  if (ucs_status_t s = ucp_worker_set_am_recv_handler(worker, &handler); s != UCS_OK) {
    return fail(ucx_error("installing the frame handler", s));
  }
  ucp_address_t* own = nullptr;
  size_t own_bytes = 0;
  if (ucs_status_t s = ucp_worker_get_address(worker, &own, &own_bytes); s != UCS_OK) {
    return fail(ucx_error("reading the worker's address", s));
  }
  impl->address.assign(reinterpret_cast<const char*>(own), own_bytes);
  ucp_worker_release_address(worker, own);
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(impl)));
}

UcxWorker::UcxWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UcxWorker::~UcxWorker() {
  impl_->callbacks.on_endpoint_failed = [](EndpointId, const std::string&) {};
  impl_->callbacks.on_frame = [](auto, auto) { return std::optional<Frame>(); };
  while (!impl_->endpoints.empty()) disconnect(impl_->endpoints.begin()->first);
  // Forced closes end without the peer; a few rounds complete them.
  for (int i = 0; i < 10'000 && !impl_->closing.empty(); ++i) progress();
  if (impl_->drain()) return;
  // Destroying it would abort the process: see drain(). Its memory stays until the process ends.
  (void)impl_->worker.release();
  (void)impl_->context.release();
  std::ignore = impl_.release();  // NOLINT: callbacks and requests of the worker point into it
}

const std::string& UcxWorker::address() const { return impl_->address; }
const std::set<std::string>& UcxWorker::available() const { return impl_->available; }
size_t UcxWorker::in_flight() const { return impl_->sends.size(); }
int UcxWorker::event_fd() const { return impl_->event_fd; }

std::string UcxWorker::version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

Result<UcxWorker::EndpointId> UcxWorker::connect(const std::string& address) {
  auto endpoint = std::make_unique<Impl::Endpoint>();
  endpoint->owner = impl_.get();
  endpoint->id = impl_->next_endpoint++;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Impl::on_error;
  params.err_handler.arg = endpoint.get();
  if (ucs_status_t s = ucp_ep_create(impl_->worker.get(), &params, &endpoint->handle);
      s != UCS_OK) {
    return fail(ucx_error("connecting to the peer", s));
  }
  const EndpointId id = endpoint->id;
  impl_->endpoints.emplace(id, std::move(endpoint));
  return id;
}

void UcxWorker::disconnect(EndpointId id) {
  const auto it = impl_->endpoints.find(id);
  if (it == impl_->endpoints.end()) return;
  it->second->failed = true;  // no more callbacks for it
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(it->second->handle, &param);
  if (UCS_PTR_IS_PTR(request)) {
    impl_->closing.push_back(request);
    // UCX may still call on_error with this endpoint until the close is complete.
    while (impl_->closing.size() > 0 && ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(impl_->worker.get());
    }
    impl_->reap_closed();
  }
  impl_->endpoints.erase(id);
}

std::set<std::string> UcxWorker::lanes(EndpointId id) const {
  const auto it = impl_->endpoints.find(id);
  if (it == impl_->endpoints.end() || it->second->failed) return {};
  return transport_names(printed([&](FILE* f) { ucp_ep_print_info(it->second->handle, f); }));
}

void UcxWorker::send(EndpointId id, Frame frame, std::function<void(bool)> done) {
  const auto it = impl_->endpoints.find(id);
  if (it == impl_->endpoints.end() || it->second->failed) {
    if (done) done(false);
    return;
  }
  impl_->start_send(it->second->handle, std::move(frame), std::move(done));
}

bool UcxWorker::progress() {
  const bool any = ucp_worker_progress(impl_->worker.get()) != 0;
  if (!impl_->closing.empty()) impl_->reap_closed();
  return any;
}

bool UcxWorker::arm() { return ucp_worker_arm(impl_->worker.get()) == UCS_OK; }

}  // namespace tandem::transport
