#include "common/transport/ucx/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/unique_handle.h"
#include "common/transport/ucx/ucp_handles.h"

namespace tandem::transport {
namespace {

constexpr ucp_tag_t kTag = 0;  // one kind of message; receives take any
// Receives that wait for a message, so that it is read where it arrives; what comes when all are
// taken is kept by UCX and taken in the same round.
constexpr size_t kPostedReceives = 16;
constexpr size_t kUcxHeader = 256;  // room for what UCX puts in front
// A peer that is gone without a word (its host died) is noticed at about this interval; one whose
// process died by TCP itself.
constexpr const char* kKeepalive = "200ms";

struct DatatypeTraits {
  using Handle = ucp_datatype_t;
  static Handle invalid() { return 0; }
  static void close(Handle h) noexcept { ucp_dt_destroy(h); }
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

// How large a piece of a message may be: for speed only. UCX 1.13 takes the key by the first name
// (and ignores the second), later versions refuse the first.
void prefer_piece(ucp_config_t* config, const char* name, const char* full_name) {
  const std::string bytes = std::to_string(UcxWorker::kWholeMessage + kUcxHeader);
  if (set_option(config, name, bytes)) return;
  (void)set_option(config, full_name, bytes);
}

Status configure(ucp_config_t* config, const std::string& tls) {
  TANDEM_TRY(set_option(config, "TLS", tls));
  TANDEM_TRY(set_option(config, "KEEPALIVE_INTERVAL", kKeepalive));
  // Nothing is connected back, see worker.h, and nobody reads or writes our memory.
  TANDEM_TRY(set_option(config, "RESOLVE_REMOTE_EP_ID", "n"));
  TANDEM_TRY(set_option(config, "RNDV_THRESH", "inf"));
  if (tls.find("tcp") != std::string::npos) {
    prefer_piece(config, "TX_SEG_SIZE", "TCP_TX_SEG_SIZE");
    prefer_piece(config, "RX_SEG_SIZE", "TCP_RX_SEG_SIZE");
  }
  if (tls.find("self") != std::string::npos) prefer_piece(config, "SEG_SIZE", "SELF_SEG_SIZE");
  return {};
}

}  // namespace

struct UcxWorker::Impl {
  struct Endpoint {
    Impl* owner = nullptr;
    EndpointId id = 0;
    ucp_ep_h handle = nullptr;
    bool failed = false;
  };
  // One send in flight.
  struct Send {
    Impl* owner = nullptr;
    Outgoing message;
    std::vector<std::byte> packed;  // only when UCX takes the message in pieces
    std::list<Send>::iterator self;
  };
  // One place for a message to come.
  struct Receive {
    Impl* owner = nullptr;
    void* request = nullptr;
    bool* finished = nullptr;       // told when it ends before the call that posts it returns
    bool begun = false;             // a message fills it: no longer ours to take back
    std::vector<std::byte> pieces;  // of a message that comes in several
    std::list<Receive>::iterator self;
  };

  Callbacks callbacks;
  std::string address;
  std::set<std::string> available;
  int event_fd = -1;
  EndpointId next_endpoint = 1;
  std::unordered_map<EndpointId, std::unique_ptr<Endpoint>> endpoints;
  std::list<Send> sends;
  std::list<Receive> receives;  // known to UCX
  size_t posted = 0;            // of them those that no message has begun to fill
  std::list<void*> closing;     // endpoint closes in progress
  // Last, so destroyed first: destroying the worker may still complete sends.
  UniqueHandle<UcpContextTraits> context;
  UniqueHandle<DatatypeTraits> outgoing;
  UniqueHandle<DatatypeTraits> incoming;
  UniqueHandle<UcpWorkerTraits> worker;

  Status open(const Options& options);
  void start_send(ucp_ep_h to, Outgoing message);
  void finish(Send& send, bool ok) {
    auto done = std::move(send.message.done);
    sends.erase(send.self);
    if (done) done(ok);
  }
  bool post_receives();
  void stop_receiving();
  void reap_closed();

  static void on_sent(void* request, ucs_status_t status, void* user) {
    auto& send = *static_cast<Send*>(user);
    ucp_request_free(request);
    send.owner->finish(send, status == UCS_OK);
  }
  static void on_received(void* request, ucs_status_t, const ucp_tag_recv_info_t*, void* user) {
    ucp_request_free(request);
    static_cast<Receive*>(user)->owner->received(*static_cast<Receive*>(user));
  }
  void received(Receive& receive) {
    if (!receive.begun) --posted;
    if (receive.finished != nullptr) *receive.finished = true;
    receives.erase(receive.self);
  }
  static void on_error(void* arg, ucp_ep_h, ucs_status_t status) {
    auto& endpoint = *static_cast<Endpoint*>(arg);
    if (endpoint.failed) return;
    endpoint.failed = true;
    endpoint.owner->callbacks.on_endpoint_failed(endpoint.id, ucs_status_string(status));
  }

  // How UCX reads a Send and fills a Receive. UCX calls these with the object as state.
  static void* start_pack(void*, const void* buffer, size_t) { return const_cast<void*>(buffer); }
  static void* start_unpack(void*, void* buffer, size_t) { return buffer; }
  static size_t send_size(void* state) { return static_cast<Send*>(state)->message.bytes; }
  static size_t receive_size(void*) { return kMaxMessage; }
  static size_t pack(void* state, size_t offset, void* to, size_t room);
  static ucs_status_t unpack(void* state, size_t offset, const void* from, size_t bytes);
  static void finish_state(void*) {}
  static constexpr ucp_generic_dt_ops_t kOutgoing = {start_pack, start_unpack, send_size,
                                                     pack,       unpack,       finish_state};
  static constexpr ucp_generic_dt_ops_t kIncoming = {start_pack, start_unpack, receive_size,
                                                     pack,       unpack,       finish_state};
};

size_t UcxWorker::Impl::pack(void* state, size_t offset, void* to, size_t room) {
  auto& send = *static_cast<Send*>(state);
  const size_t bytes = std::min(room, send.message.bytes - offset);
  if (offset == 0 && bytes == send.message.bytes) {
    send.message.pack({static_cast<std::byte*>(to), bytes});
    return bytes;
  }
  if (send.packed.empty()) {
    send.packed.resize(send.message.bytes);
    send.message.pack(send.packed);
  }
  std::memcpy(to, send.packed.data() + offset, bytes);
  return bytes;
}

// A message starts with its length, which is how the last piece is known.
ucs_status_t UcxWorker::Impl::unpack(void* state, size_t offset, const void* from, size_t bytes) {
  auto& receive = *static_cast<Receive*>(state);
  Impl& impl = *receive.owner;
  const std::span piece(static_cast<const std::byte*>(from), bytes);
  if (offset == 0) {
    receive.begun = true;
    --impl.posted;
    uint32_t length = 0;
    if (bytes < sizeof(length)) return UCS_OK;  // not ours
    std::memcpy(&length, from, sizeof(length));
    if (length > kMaxMessage || length < bytes) return UCS_OK;
    if (length == bytes) {
      impl.callbacks.on_message(piece.subspan(sizeof(length)));
      return UCS_OK;
    }
    receive.pieces.reserve(length);
  }
  // One sender's pieces come in order over one lane; anything else is not ours.
  if (offset != receive.pieces.size() || offset + bytes > receive.pieces.capacity()) return UCS_OK;
  receive.pieces.insert(receive.pieces.end(), piece.begin(), piece.end());
  uint32_t length = 0;
  std::memcpy(&length, receive.pieces.data(), sizeof(length));
  if (receive.pieces.size() == length) {
    impl.callbacks.on_message(std::span<const std::byte>(receive.pieces).subspan(sizeof(length)));
  }
  return UCS_OK;
}

void UcxWorker::Impl::start_send(ucp_ep_h to, Outgoing message) {
  // The length goes in front; see unpack().
  const auto length = static_cast<uint32_t>(message.bytes + sizeof(uint32_t));
  auto pack_rest = [pack = std::move(message.pack), length](std::span<std::byte> bytes) {
    std::memcpy(bytes.data(), &length, sizeof(length));
    pack(bytes.subspan(sizeof(length)));
  };
  sends.push_back({this, {length, std::move(pack_rest), std::move(message.done)}, {}, {}});
  Send& send = sends.back();
  send.self = std::prev(sends.end());
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  param.datatype = outgoing.get();
  param.cb.send = &Impl::on_sent;
  param.user_data = &send;
  void* request = ucp_tag_send_nbx(to, &send, 1, kTag, &param);
  if (request == nullptr) {
    finish(send, true);
  } else if (UCS_PTR_IS_ERR(request)) {
    finish(send, false);
  }
  // Else on_sent() follows.
}

// Keeps places ready; what came while there was none is delivered here. True if anything was.
bool UcxWorker::Impl::post_receives() {
  bool any = false;
  while (posted < kPostedReceives) {
    Receive& receive = receives.emplace_back();
    receive.owner = this;
    receive.self = std::prev(receives.end());
    ++posted;
    bool finished = false;
    receive.finished = &finished;
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = incoming.get();
    param.cb.recv = &Impl::on_received;
    param.user_data = &receive;
    void* request = ucp_tag_recv_nbx(worker.get(), &receive, 1, kTag, 0, &param);
    any |= finished;
    if (finished) continue;  // its pieces had all come before
    receive.finished = nullptr;
    if (UCS_PTR_IS_PTR(request)) {
      receive.request = request;
      continue;
    }
    received(receive);
    if (UCS_PTR_IS_ERR(request)) break;
    any = true;  // it came earlier and is done
  }
  return any;
}

// The places go back; UCX completes each at once.
void UcxWorker::Impl::stop_receiving() {
  for (auto it = receives.begin(); it != receives.end();) {
    Receive& receive = *it++;
    if (!receive.begun) ucp_request_cancel(worker.get(), receive.request);
  }
}

void UcxWorker::Impl::reap_closed() {
  std::erase_if(closing, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

Status UcxWorker::Impl::open(const Options& options) {
  ucp_config_t* raw_config = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &raw_config); s != UCS_OK) {
    return fail(ucx_error("reading its configuration", s));
  }
  const UniqueHandle<UcpConfigTraits> config(raw_config);
  TANDEM_TRY(configure(raw_config, options.tls));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  ucp_context_h new_context = nullptr;
  if (ucs_status_t s = ucp_init(&params, raw_config, &new_context); s != UCS_OK) {
    return fail(ErrorCode::kConfig,
                "UCX finds no usable transport among '" + options.tls + "' (" +
                    ucs_status_string(s) + "); `tandem doctor` lists those of this machine",
                "transport.ucx_tls");
  }
  context.reset(new_context);
  available = transport_names(printed([&](FILE* f) { ucp_context_print_info(new_context, f); }));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h new_worker = nullptr;
  if (ucs_status_t s = ucp_worker_create(new_context, &worker_params, &new_worker); s != UCS_OK) {
    return fail(ucx_error("creating a worker", s));
  }
  worker.reset(new_worker);
  if (ucs_status_t s = ucp_worker_get_efd(new_worker, &event_fd); s != UCS_OK) {
    return fail(ucx_error("getting the event descriptor", s));
  }
  for (auto [ops, type] : {std::pair(&kOutgoing, &outgoing), std::pair(&kIncoming, &incoming)}) {
    ucp_datatype_t made = 0;
    if (ucs_status_t s = ucp_dt_create_generic(ops, this, &made); s != UCS_OK) {
      return fail(ucx_error("describing messages", s));
    }
    type->reset(made);
  }
  ucp_address_t* own = nullptr;
  size_t own_bytes = 0;
  if (ucs_status_t s = ucp_worker_get_address(new_worker, &own, &own_bytes); s != UCS_OK) {
    return fail(ucx_error("reading the worker's address", s));
  }
  address.assign(reinterpret_cast<const char*>(own), own_bytes);
  ucp_worker_release_address(new_worker, own);
  return {};
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const Options& options, Callbacks callbacks) {
  auto impl = std::make_unique<Impl>();
  impl->callbacks = std::move(callbacks);
  TANDEM_TRY(impl->open(options));
  (void)impl->post_receives();
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(impl)));
}

UcxWorker::UcxWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UcxWorker::~UcxWorker() {
  impl_->callbacks.on_endpoint_failed = [](EndpointId, const std::string&) {};
  impl_->callbacks.on_message = [](auto) {};
  while (!impl_->endpoints.empty()) disconnect(impl_->endpoints.begin()->first);
  impl_->stop_receiving();
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

void UcxWorker::send(EndpointId id, Outgoing message) {
  const auto it = impl_->endpoints.find(id);
  if (it == impl_->endpoints.end() || it->second->failed || message.bytes > kMaxMessage) {
    if (message.done) message.done(false);
    return;
  }
  impl_->start_send(it->second->handle, std::move(message));
}

bool UcxWorker::progress() {
  bool any = ucp_worker_progress(impl_->worker.get()) != 0;
  any |= impl_->post_receives();
  if (!impl_->closing.empty()) impl_->reap_closed();
  return any;
}

bool UcxWorker::arm() { return ucp_worker_arm(impl_->worker.get()) == UCS_OK; }

}  // namespace tandem::transport
