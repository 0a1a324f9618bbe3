#include "common/transport/device_transports.h"
#include "common/transport/direct/direct_transport.h"
#include "common/transport/nccl/nccl_fabric.h"

namespace tandem::transport {

Result<std::unique_ptr<Transport>> create_nccl_transport(const DeviceTransportOptions& options,
                                                         const TransportDeps& deps) {
  if (deps.memory == nullptr || deps.memory->device().empty()) {
    return fail(ErrorCode::kConfig, "nccl moves pages of a GPU, and this node's are on the host",
                "transport.kind");
  }
  TANDEM_ASSIGN(auto fabric,
                create_nccl_fabric({.copier = DeviceCopier::Options::within(options.device),
                                    .library_folders = options.libraries}));
  return create_direct_transport(std::move(fabric), deps, options.on_warning);
}

}  // namespace tandem::transport
