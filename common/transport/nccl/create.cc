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
  NcclOptions nccl{.copier = DeviceCopier::Options::within(options.device),
                   .library_folders = options.libraries};
  const auto create_fabric = [&](const DirectWays& ways) {
    nccl.ways = ways;
    return create_nccl_fabric(nccl);
  };
  return create_two_way_transport(create_fabric, deps, options.on_warning);
}

}  // namespace tandem::transport
