#include <utility>

#include "common/config/units.h"
#include "common/node/node_transport.h"
#include "common/transport/cuda_ipc/ipc_fabric.h"
#include "common/transport/direct/direct_transport.h"

namespace tandem::node {

Result<std::unique_ptr<transport::Transport>> open_cuda_ipc(const kv::PageMemory& memory,
                                                            const transport::TransportDeps& deps,
                                                            WarningHandler on_warning) {
  const auto device = parse_device(memory.device().empty() ? "cpu" : memory.device());
  if (!device || !device->cuda) {
    return fail(ErrorCode::kConfig,
                "transport 'cuda_ipc' moves pages of GPU memory, and this node's device is cpu: use "
                "'ucx'",
                "transport.kind");
  }
  transport::IpcOptions options;
  options.copier.device = static_cast<int>(device->index);
  options.memory.emplace_back(memory.pages(), memory.bytes() - memory.tail_bytes());
  if (memory.tail_bytes() > 0) options.memory.emplace_back(memory.tails(), memory.tail_bytes());
  TANDEM_ASSIGN(auto fabric, transport::create_ipc_fabric(std::move(options)));
  return transport::create_direct_transport(std::move(fabric), deps, std::move(on_warning));
}

}  // namespace tandem::node
