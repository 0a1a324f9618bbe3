#include "common/cuda/memory.h"
#include "common/transport/cuda_ipc/device_copier.h"
#include "common/transport/device_transports.h"
#include "common/transport/direct/direct_transport.h"
#include "common/transport/ucx/ucx_fabric.h"

namespace tandem::transport {
namespace {

Result<std::unique_ptr<Fabric>> create_fabric(int device, const std::string& tls,
                                              const DirectWays& ways) {
  UcxFabricOptions ucx{.tls = tls, .ways = ways, .copiers = {}, .memory = nullptr};
  ucx.on_thread = [device]() -> Status {
    TANDEM_CUDA_TRY(cudaSetDevice(device));
    return {};
  };
  auto& copier = ways.sends ? ucx.copiers.sender : ucx.copiers.receiver;
  TANDEM_ASSIGN(copier, DeviceCopier::create(DeviceCopier::Options::within(device)));
  TANDEM_ASSIGN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(ucx.slot_bytes));
  const auto memory = std::make_shared<cuda::DeviceBuffer>(std::move(buffer));
  ucx.memory = std::shared_ptr<std::byte>(memory, memory->data());
  return create_ucx_fabric(std::move(ucx));
}

}  // namespace

Status check_ucx_device(int device, const std::string& tls) {
  const cuda::DeviceScope scope(device);  // UCX looks for the device of this thread
  TANDEM_ASSIGN(const bool knows, ucx_knows_cuda(tls));
  if (knows) return {};
  return fail(ErrorCode::kUnsupported, "the UCX in use knows no CUDA memory over '" + tls + "'");
}

Result<std::unique_ptr<Transport>> create_ucx_device_transport(
    const DeviceTransportOptions& options, const std::string& tls, const TransportDeps& deps) {
  if (deps.memory == nullptr || deps.memory->device().empty()) {
    return fail(ErrorCode::kUnsupported, "the node's pages are on the host");
  }
  TANDEM_TRY(check_ucx_device(options.device, tls));
  const cuda::DeviceScope scope(options.device);
  return create_two_way_transport(
      [&](const DirectWays& ways) { return create_fabric(options.device, tls, ways); }, deps,
      options.on_warning);
}

}  // namespace tandem::transport
