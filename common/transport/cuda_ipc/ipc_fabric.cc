#include "common/transport/cuda_ipc/ipc_fabric.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "common/cuda/device_info.h"
#include "common/transport/direct/wire_format.h"

namespace tandem::transport {
namespace {

struct MappingTraits {
  using Handle = std::byte*;
  static Handle invalid() { return nullptr; }
  static void close(Handle data) noexcept {
    cuda::report_failure(cudaIpcCloseMemHandle(data), "cudaIpcCloseMemHandle");
  }
};

// A whole allocation: exported by its owner, mapped by a receiver.
struct Region {
  std::byte* base = nullptr;
  size_t bytes = 0;
  cudaIpcMemHandle_t handle{};
};

struct PeerHello {
  int runtime = 0;
  uint64_t process = 0;
  std::string uuid;  // 16 bytes
  int device = 0;
  std::vector<Region> regions;
};

constexpr size_t kMostRegions = 8;

// A random number, one for each process: handles cannot be opened where they were made.
uint64_t this_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

// The allocation that holds an address. The driver's own function: the runtime has none.
Result<Region> allocation_of(const void* address) {
  using Query = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TANDEM_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000,
                                                   cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return fail(ErrorCode::kUnsupported, "this driver has no cuMemGetAddressRange");
  }
  CUdeviceptr base = 0;
  Region region;
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  if (reinterpret_cast<Query>(function)(&base, &region.bytes, at) != CUDA_SUCCESS) {
    return fail(ErrorCode::kInternal, "cuda_ipc: the KV pool is not one of CUDA's allocations");
  }
  region.base = reinterpret_cast<std::byte*>(base);
  return region;
}

std::string encode(const PeerHello& hello) {
  FieldWriter fields;
  fields.put(static_cast<uint32_t>(hello.runtime)).put(hello.process).text(hello.uuid);
  fields.put(static_cast<uint32_t>(hello.device)).put(static_cast<uint32_t>(hello.regions.size()));
  for (const Region& r : hello.regions) {
    fields.put(reinterpret_cast<uint64_t>(r.base)).put(uint64_t{r.bytes}).put(r.handle);
  }
  return fields.take();
}

Result<PeerHello> parse(const std::string& text) {
  FieldReader fields(text);
  PeerHello hello;
  hello.runtime = static_cast<int>(fields.get<uint32_t>());
  hello.process = fields.get<uint64_t>();
  hello.uuid = fields.text();
  hello.device = static_cast<int>(fields.get<uint32_t>());
  const auto count = fields.get<uint32_t>();
  for (uint32_t i = 0; i < std::min<size_t>(count, kMostRegions); ++i) {
    Region r;
    r.base = reinterpret_cast<std::byte*>(fields.get<uint64_t>());
    r.bytes = fields.get<uint64_t>();
    r.handle = fields.get<cudaIpcMemHandle_t>();
    hello.regions.push_back(r);
  }
  if (!fields.complete() || hello.uuid.size() != sizeof(cudaUUID_t)) {
    return fail(ErrorCode::kCorruptData, "cuda_ipc: a hello is malformed");
  }
  return hello;
}

class IpcLink final : public Link {
 public:
  IpcLink(std::span<const Region> own, std::string detail)
      : own_(own), detail_(std::move(detail)) {}

  // The peer's regions, mapped; or, within one process, as they are.
  struct Mapped {
    std::byte* base = nullptr;
    size_t bytes = 0;
    UniqueHandle<MappingTraits> owner;
  };
  std::vector<Mapped> peer;

  std::string detail() const override { return detail_; }
  Result<bool> ready() override { return true; }
  bool busy() const override { return false; }
  Result<std::optional<Staged>> stage(std::span<Piece> pieces) override {
    FieldWriter fields;
    fields.reserve(pieces.size() * (sizeof(uint8_t) + sizeof(uint64_t)));
    for (const Piece& p : pieces) {
      size_t i = 0;
      while (i < own_.size() &&
             !(p.from >= own_[i].base && p.from + p.bytes <= own_[i].base + own_[i].bytes)) {
        ++i;
      }
      if (i == own_.size()) {
        return fail(ErrorCode::kInvalidArgument, "cuda_ipc: a page lies outside the KV pool");
      }
      fields.put(static_cast<uint8_t>(i)).put(static_cast<uint64_t>(p.from - own_[i].base));
    }
    return Staged{0, fields.take()};
  }
  Status launch(uint64_t) override {
    return fail(ErrorCode::kCorruptData, "cuda_ipc: a go that nobody asked for");
  }
  void abandon(uint64_t) override {}
  bool sums_follow() const override { return true; }

  Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) override {
    FieldReader fields(note);
    for (Piece& p : pieces) {
      const auto region = fields.get<uint8_t>();
      const auto offset = fields.get<uint64_t>();
      if (!fields.good() || region >= peer.size() || offset > peer[region].bytes ||
          p.bytes > peer[region].bytes - offset || offset % 4 != 0) {
        return fail(ErrorCode::kCorruptData, "an offer points outside the sender's KV pool");
      }
      p.from = peer[region].base + offset;
    }
    if (!fields.complete()) return fail(ErrorCode::kCorruptData, "an offer is too long");
    return 0;
  }
  Result<bool> grant(uint64_t, std::span<Piece>) override { return true; }
  bool needs_go() const override { return false; }
  Result<bool> arrived(uint64_t) override { return true; }
  void release(uint64_t) override {}

 private:
  const std::span<const Region> own_;
  const std::string detail_;
};

class IpcFabric final : public Fabric {
 public:
  explicit IpcFabric(IpcOptions options) : options_(std::move(options)) {}
  Status set_up();

  std::string_view name() const override { return "cuda_ipc"; }
  std::string version() const override { return cuda::version_text(self_.runtime); }
  PageCopier& copier(bool sender) override { return copiers_.of(sender); }
  // Each offer costs both threads some microseconds: at 1 MiB an offer they bound a push to about
  // 200 GB/s. A layer of less is one offer.
  size_t frame_bytes() const override { return options_.frame_bytes; }
  bool stays_awake() const override { return true; }
  Status start() override {
    TANDEM_CUDA_TRY(cudaSetDevice(self_.device));
    return {};
  }
  Result<std::string> hello(bool sender) override {
    PeerHello hello = self_;
    if (!sender) hello.regions.clear();
    return encode(hello);
  }
  Result<std::unique_ptr<Link>> open(bool sender, const std::string& own,
                                     const std::string& peer) override;

 private:
  Result<std::string> relation(const PeerHello& peer) const;
  static Result<IpcLink::Mapped> map(const Region& region);

  const IpcOptions options_;
  PeerHello self_;
  CopierPair copiers_;
};

Status IpcFabric::set_up() {
  self_.device = options_.copier.device;
  const cuda::DeviceScope scope(self_.device);
  // Binds the device's context to this thread, which the driver's own functions do not do.
  TANDEM_CUDA_TRY(cudaFree(nullptr));
  TANDEM_CUDA_TRY(cudaRuntimeGetVersion(&self_.runtime));
  cudaDeviceProp properties{};
  TANDEM_CUDA_TRY(cudaGetDeviceProperties(&properties, self_.device));
  self_.uuid.assign(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  self_.process = this_process();
  for (const auto& memory : options_.memory) {
    if (memory.data() == nullptr) continue;
    TANDEM_ASSIGN(Region region, allocation_of(memory.data()));
    const auto same = [&](const Region& r) { return r.base == region.base; };
    if (std::ranges::any_of(self_.regions, same)) continue;
    TANDEM_CUDA_TRY(cudaIpcGetMemHandle(&region.handle, region.base));
    self_.regions.push_back(region);
  }
  if (self_.regions.size() > kMostRegions) {
    return fail(ErrorCode::kInternal, "cuda_ipc: the KV pool lies in too many allocations");
  }
  if (options_.ways.sends) {
    TANDEM_ASSIGN(copiers_.sender, DeviceCopier::create(options_.copier));
  }
  if (options_.ways.receives) {
    TANDEM_ASSIGN(copiers_.receiver, DeviceCopier::create(options_.copier));
  }
  return {};
}

// How the peer's GPU stands to ours, for detail(); an error when there is no way.
Result<std::string> IpcFabric::relation(const PeerHello& peer) const {
  if (peer.runtime / 1000 != self_.runtime / 1000) {
    return fail(ErrorCode::kMismatch,
                "cuda_ipc: the peer was built with CUDA " + cuda::version_text(peer.runtime) +
                    ", this process with " + cuda::version_text(self_.runtime));
  }
  if (peer.uuid == self_.uuid) return std::string("one GPU");
  int count = 0;
  TANDEM_CUDA_TRY(cudaGetDeviceCount(&count));
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    TANDEM_CUDA_TRY(cudaGetDeviceProperties(&properties, i));
    if (std::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)) != peer.uuid)
      continue;
    int reachable = 0;
    TANDEM_CUDA_TRY(cudaDeviceCanAccessPeer(&reachable, self_.device, i));
    if (reachable != 0) return std::string("peer GPU");
    return fail(ErrorCode::kUnsupported, "cuda_ipc: GPUs " + std::to_string(self_.device) +
                                             " and " + std::to_string(i) +
                                             " cannot reach each other's memory; set "
                                             "transport.kind to ucx");
  }
  return fail(ErrorCode::kUnsupported,
              "cuda_ipc: the peer's GPU is not visible here; let CUDA_VISIBLE_DEVICES name both "
              "GPUs in both processes");
}

Result<IpcLink::Mapped> IpcFabric::map(const Region& region) {
  void* base = nullptr;
  TANDEM_CUDA_TRY(cudaIpcOpenMemHandle(&base, region.handle, cudaIpcMemLazyEnablePeerAccess));
  IpcLink::Mapped mapped;
  mapped.base = static_cast<std::byte*>(base);
  mapped.owner = UniqueHandle<MappingTraits>(mapped.base);
  TANDEM_ASSIGN(const Region real, allocation_of(base));  // not what the peer says it is
  mapped.bytes = real.bytes;
  return mapped;
}

Result<std::unique_ptr<Link>> IpcFabric::open(bool sender, const std::string&,
                                              const std::string& peer_hello) {
  TANDEM_ASSIGN(const PeerHello peer, parse(peer_hello));
  TANDEM_ASSIGN(std::string detail, relation(peer));
  auto link = std::make_unique<IpcLink>(self_.regions, std::move(detail));
  for (const Region& region : peer.regions) {
    if (sender) break;
    if (peer.process == self_.process) {
      link->peer.push_back({region.base, region.bytes, {}});
      continue;
    }
    TANDEM_ASSIGN(IpcLink::Mapped mapped, map(region));
    link->peer.push_back(std::move(mapped));
  }
  return link;
}

}  // namespace

Result<std::unique_ptr<Fabric>> create_ipc_fabric(IpcOptions options) {
  auto fabric = std::make_unique<IpcFabric>(std::move(options));
  TANDEM_TRY(fabric->set_up());
  return fabric;
}

}  // namespace tandem::transport
