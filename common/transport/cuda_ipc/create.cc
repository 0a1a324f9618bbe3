#include "common/transport/cuda_ipc/ipc_fabric.h"
#include "common/transport/device_transports.h"
#include "common/transport/direct/direct_transport.h"

namespace tandem::transport {

Result<std::unique_ptr<Transport>> create_cuda_ipc_transport(const DeviceTransportOptions& options,
                                                             const TransportDeps& deps) {
  if (deps.memory == nullptr || deps.memory->device().empty()) {
    return fail(ErrorCode::kConfig,
                "cuda_ipc moves pages of a GPU, and this node's are on the host", "transport.kind");
  }
  IpcOptions ipc{.copier = {.device = options.device}, .memory = {}};
  for (std::byte* area : {deps.memory->pages(), deps.memory->tails()}) {
    if (area != nullptr) ipc.memory.emplace_back(area, 1);  // exported with its whole allocation
  }
  const auto create_fabric = [&](const DirectWays& ways) {
    ipc.ways = ways;
    return create_ipc_fabric(ipc);
  };
  return create_two_way_transport(create_fabric, deps, options.on_warning);
}

}  // namespace tandem::transport
