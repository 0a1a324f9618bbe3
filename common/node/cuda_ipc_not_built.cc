#include "common/node/node_transport.h"

namespace tandem::node {

Result<std::unique_ptr<transport::Transport>> open_cuda_ipc(const kv::PageMemory&,
                                                            const transport::TransportDeps&,
                                                            WarningHandler) {
  return fail(ErrorCode::kUnsupported, "this build has no CUDA code, and therefore no cuda_ipc",
              "transport.kind");
}

}  // namespace tandem::node
