#include "common/transport/nccl/nccl_fabric.h"

#include <cstring>
#include <random>
#include <utility>

#include "common/transport/direct/wire_format.h"
#include "common/transport/nccl/nccl_link.h"

namespace tandem::transport {
namespace {

struct PeerHello {
  std::string version;
  uint64_t process = 0;
  std::string uuid;
  ncclUniqueId id{};  // a sender's; one for each connection
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
  fields.text(hello.version).put(hello.process).text(hello.uuid).put(hello.id);
  return fields.take();
}

Result<PeerHello> parse(const std::string& text) {
  FieldReader fields(text);
  PeerHello hello;
  hello.version = fields.text();
  hello.process = fields.get<uint64_t>();
  hello.uuid = fields.text();
  hello.id = fields.get<ncclUniqueId>();
  if (!fields.complete()) return fail(ErrorCode::kCorruptData, "nccl: a hello is malformed");
  return hello;
}

class NcclFabric final : public Fabric {
 public:
  explicit NcclFabric(const NcclOptions& options) : options_(options) {}
  Status set_up();

  std::string_view name() const override { return "nccl"; }
  std::string version() const override { return api_.version(); }
  PageCopier& copier() override { return *copier_; }
  size_t frame_bytes() const override { return options_.slot_bytes; }
  Status start() override {
    TANDEM_CUDA_TRY(cudaSetDevice(options_.copier.device));
    return {};
  }
  Result<std::string> hello(bool sender) override {
    PeerHello hello = self_;
    if (sender) {
      TANDEM_TRY(api_.status(api_.ncclGetUniqueId(&hello.id), "ncclGetUniqueId", nullptr));
    }
    return encode(hello);
  }
  Result<std::unique_ptr<Link>> open(bool sender, const std::string& own,
                                     const std::string& peer) override;

 private:
  const NcclOptions options_;
  NcclApi api_;
  PeerHello self_;
  SlotPool send_slots_;
  SlotPool receive_slots_;
  std::unique_ptr<DeviceCopier> copier_;
};

Status NcclFabric::set_up() {
  const cuda::DeviceScope scope(options_.copier.device);
  TANDEM_ASSIGN(api_, NcclApi::open(options_.library_folders));
  self_.version = api_.version();
  self_.process = this_process();
  cudaDeviceProp properties{};
  TANDEM_CUDA_TRY(cudaGetDeviceProperties(&properties, options_.copier.device));
  self_.uuid.assign(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  TANDEM_ASSIGN(send_slots_, SlotPool::create(options_.slot_bytes, options_.slots));
  TANDEM_ASSIGN(receive_slots_, SlotPool::create(options_.slot_bytes, options_.slots));
  TANDEM_ASSIGN(copier_, DeviceCopier::create(options_.copier));
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
  const ncclUniqueId& id = sender ? mine.id : peer.id;
  return NcclLink::create({api_, send_slots_, receive_slots_, options_.most_grouped}, sender, id,
                          self ? self_pair(id) : nullptr);
}

}  // namespace

Result<std::unique_ptr<Fabric>> create_nccl_fabric(const NcclOptions& options) {
  auto fabric = std::make_unique<NcclFabric>(options);
  TANDEM_TRY(fabric->set_up());
  return fabric;
}

}  // namespace tandem::transport
