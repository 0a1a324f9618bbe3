#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/kv/page_memory.h"
#include "common/transport/transport.h"

namespace tandem::node {

// Told what an operator should know of the transport, e.g. that it is slower than expected. On the
// transport's thread.
using WarningHandler = std::function<void(const std::string&)>;

// The transport that a node's configuration names for pages in `memory`, which outlives it; never
// another one. What cannot reach them is refused with the reason, and so is inproc.
[[nodiscard]] Result<std::unique_ptr<transport::Transport>> open_transport(
    const TransportSettings& settings, const kv::PageMemory& memory,
    const transport::TransportDeps& deps, WarningHandler on_warning = {});

// open_transport() for cuda_ipc; in a build without CUDA an error that says so.
[[nodiscard]] Result<std::unique_ptr<transport::Transport>> open_cuda_ipc(
    const kv::PageMemory& memory, const transport::TransportDeps& deps, WarningHandler on_warning);

// For the handshake: libraries whose versions two nodes must share, e.g. {"ucx", "1.13.1"}; on a
// node with a GPU also "cuda_driver" and "cuda_runtime".
[[nodiscard]] std::map<std::string, std::string> library_versions(
    const transport::Transport& transport, const NodeSettings& node);

}  // namespace tandem::node
