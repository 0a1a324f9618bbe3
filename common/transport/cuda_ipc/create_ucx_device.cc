#include "common/cuda/memory.h"
#include "common/transport/cuda_ipc/device_copier.h"
#include "common/transport/device_transports.h"
#include "common/transport/direct/direct_transport.h"
#include "common/transport/ucx/ucx_fabric.h"

namespace tandem::transport {

Result<std::unique_ptr<Transport>> create_ucx_device_transport(
    const DeviceTransportOptions& options, const std::string& tls, const TransportDeps& deps) {
  if (deps.memory == nullptr || deps.memory->device().empty()) {
    return fail(ErrorCode::kUnsupported, "the node's pages are on the host");
  }
  const cuda::DeviceScope scope(options.device);  // UCX looks for the device of this thread
  TANDEM_ASSIGN(const bool knows, ucx_knows_cuda(tls));
  if (!knows) {
    return fail(ErrorCode::kUnsupported, "the UCX in use knows no CUDA memory over '" + tls + "'");
  }
  UcxFabricOptions ucx{.tls = tls, .copiers = {}, .memory = nullptr};
  ucx.on_thread = [device = options.device]() -> Status {
    TANDEM_CUDA_TRY(cudaSetDevice(device));
    return {};
  };
  TANDEM_ASSIGN(ucx.copiers,
                DeviceCopier::create_pair(DeviceCopier::Options::within(options.device)));
  TANDEM_ASSIGN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(2 * ucx.slot_bytes));
  const auto memory = std::make_shared<cuda::DeviceBuffer>(std::move(buffer));
  ucx.memory = std::shared_ptr<std::byte>(memory, memory->data());
  TANDEM_ASSIGN(auto fabric, create_ucx_fabric(std::move(ucx)));
  return create_direct_transport(std::move(fabric), deps, options.on_warning);
}

}  // namespace tandem::transport
