#include "common/transport/nccl/nccl_fabric.h"

#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "common/transport/direct/wire_format.h"
#include "common/transport/nccl/nccl_link.h"

namespace tandem::transport {
namespace {

constexpr uint32_t kMostLanes = 4;
// A receiver answers within this time, or its connection is given up.
constexpr Duration kGreetingTime = std::chrono::seconds(10);

struct PeerHello {
  std::string version;
  uint64_t process = 0;
  std::string uuid;
  std::vector<ncclUniqueId> ids;  // a sender's; of one connection, one for each lane
};

uint64_t this_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

// Connections whose two ends are in this process find each other here, by the sender's id.
std::shared_ptr<SelfPair> self_pair(const ncclUniqueId& id) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<SelfPair>> pairs;
  std::lock_guard lock(mutex);
  std::erase_if(pairs, [](const auto& entry) { return entry.second.expired(); });
  auto& known = pairs[std::string(id.internal, sizeof(id.internal))];
  std::shared_ptr<SelfPair> pair = known.lock();
  if (pair == nullptr) known = pair = std::make_shared<SelfPair>();
  return pair;
}

std::string encode(const PeerHello& hello) {
  FieldWriter fields;
  fields.text(hello.version).put(hello.process).text(hello.uuid);
  fields.put(static_cast<uint8_t>(hello.ids.size()));
  for (const ncclUniqueId& id : hello.ids) fields.put(id);
  return fields.take();
}

Result<PeerHello> parse(const std::string& text) {
  FieldReader fields(text);
  PeerHello hello;
  hello.version = fields.text();
  hello.process = fields.get<uint64_t>();
  hello.uuid = fields.text();
  const auto lanes = fields.get<uint8_t>();
  for (uint8_t i = 0; i < lanes && fields.good(); ++i) {
    hello.ids.push_back(fields.get<ncclUniqueId>());
  }
  if (!fields.complete() || lanes > kMostLanes)
    return fail(ErrorCode::kCorruptData, "nccl: a hello is malformed");
  return hello;
}

class NcclFabric final : public Fabric {
 public:
  explicit NcclFabric(NcclOptions options) : options_(std::move(options)) {}
  Status set_up();

  std::string_view name() const override { return "nccl"; }
  std::string version() const override { return api_->version(); }
  PageCopier& copier(bool sender) override { return copiers_.of(sender); }
  size_t frame_bytes() const override { return options_.frame_bytes; }
  bool stays_awake() const override { return true; }
  Status start() override {
    TANDEM_CUDA_TRY(cudaSetDevice(options_.copier.device));
    return {};
  }
  Result<std::string> hello(bool sender) override {
    PeerHello hello = self_;
    if (sender) prune_prepared();
    std::vector<NcclBuilder::Build> builds;
    if (sender) {
      // Before the receiver builds anything that would wait for this side.
      TANDEM_ASSIGN(builds, builder_->prepare(options_.lanes));
    }
    for (uint32_t i = 0; sender && i < options_.lanes; ++i) {
      ncclUniqueId& id = hello.ids.emplace_back();
      TANDEM_TRY(api_->status(api_->ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
    }
    std::string text = encode(hello);
    if (sender) prepared_[text] = {clock_.now(), std::move(builds)};
    return text;
  }
  Result<std::unique_ptr<Link>> open(bool sender, const std::string& own,
                                     const std::string& peer) override;

 private:
  // A sender's threads for the connection of one hello, until it is opened or given up.
  struct Prepared {
    TimePoint since;
    std::vector<NcclBuilder::Build> builds;
  };
  void prune_prepared() {
    std::erase_if(prepared_, [now = clock_.now()](const auto& entry) {
      return now - entry.second.since > kGreetingTime;
    });
  }

  const NcclOptions options_;
  SteadyClock clock_;
  std::shared_ptr<const NcclApi> api_;
  std::unique_ptr<NcclBuilder> builder_;
  std::map<std::string, Prepared> prepared_;  // by hello; the transport's thread; before builder_
  PeerHello self_;
  cuda::DeviceBuffer memory_;  // of both kinds of slots
  SlotSpace send_slots_;
  SlotSpace receive_slots_;
  CopierPair copiers_;
};

Status NcclFabric::set_up() {
  const cuda::DeviceScope scope(options_.copier.device);
  TANDEM_ASSIGN(auto api, NcclApi::open(options_.library_folders));
  api_ = std::make_shared<const NcclApi>(std::move(api));
  TANDEM_ASSIGN(cuda::DeviceBuffer greeting,
                cuda::DeviceBuffer::create(NcclBuilder::kGreetingBytes));
  const auto shared = std::make_shared<cuda::DeviceBuffer>(std::move(greeting));
  builder_ =
      std::make_unique<NcclBuilder>(api_, std::shared_ptr<std::byte>(shared, shared->data()));
  self_.version = api_->version();
  self_.process = this_process();
  cudaDeviceProp properties{};
  TANDEM_CUDA_TRY(cudaGetDeviceProperties(&properties, options_.copier.device));
  self_.uuid.assign(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  const size_t sends = options_.ways.sends ? options_.slot_bytes : 0;
  const size_t receives = options_.ways.receives ? options_.slot_bytes : 0;
  TANDEM_ASSIGN(memory_, cuda::DeviceBuffer::create(sends + receives));
  send_slots_ = SlotSpace(memory_.data(), sends);
  receive_slots_ = SlotSpace(memory_.data() + sends, receives);
  if (sends > 0) {
    TANDEM_ASSIGN(copiers_.sender, DeviceCopier::create(options_.copier));
  }
  if (receives > 0) {
    TANDEM_ASSIGN(copiers_.receiver, DeviceCopier::create(options_.copier));
  }
  return {};
}

Result<std::unique_ptr<Link>> NcclFabric::open(bool sender, const std::string& own,
                                               const std::string& peer_hello) {
  TANDEM_ASSIGN(const PeerHello mine, parse(own));
  TANDEM_ASSIGN(const PeerHello peer, parse(peer_hello));
  if (peer.version != mine.version) {
    return fail(ErrorCode::kMismatch, "nccl: NCCL " + mine.version + " here and NCCL " +
                                          peer.version + " at the peer; use one version");
  }
  const bool self = peer.process == mine.process;
  if (!self && peer.uuid == mine.uuid && !options_.allow_one_gpu) {
    return fail(ErrorCode::kUnsupported,
                "nccl cannot join two processes on one GPU; set transport.kind to cuda_ipc");
  }
  const std::vector<ncclUniqueId>& ids = sender ? mine.ids : peer.ids;
  if (ids.empty()) return fail(ErrorCode::kCorruptData, "nccl: a sender offers no communicator");
  const NcclShared shared{
      .api = *api_,
      .builder = *builder_,
      .slots = {name(), send_slots_, receive_slots_, options_.frame_bytes, options_.message_bytes},
      .device = options_.copier.device,
      .ctas = options_.ctas,
      .group = {options_.most_grouped, options_.group_bytes}};
  std::vector<NcclBuilder::Build> builds;
  if (auto prepared = prepared_.extract(own)) builds = std::move(prepared.mapped().builds);
  return NcclLink::create(shared, sender, ids, self ? self_pair(ids.front()) : nullptr,
                          std::move(builds));
}

}  // namespace

Result<std::unique_ptr<Fabric>> create_nccl_fabric(const NcclOptions& options) {
  auto fabric = std::make_unique<NcclFabric>(options);
  TANDEM_TRY(fabric->set_up());
  return fabric;
}

}  // namespace tandem::transport
