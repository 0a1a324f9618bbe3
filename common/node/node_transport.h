#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/transport/transport.h"

namespace tandem::node {

// Told what an operator should know of the transport, e.g. that it is slower than expected. On the
// transport's thread.
using WarningHandler = std::function<void(const std::string&)>;

// The transport that a node's configuration names; never another one. Between processes that is
// ucx: inproc is refused with the reason.
[[nodiscard]] Result<std::unique_ptr<transport::Transport>> open_transport(
    const TransportSettings& settings, const transport::TransportDeps& deps,
    WarningHandler on_warning = {});

// For the handshake: libraries whose versions two nodes must share, e.g. {"ucx", "1.13.1"}; on a
// node with a GPU also "cuda_driver" and "cuda_runtime".
[[nodiscard]] std::map<std::string, std::string> library_versions(
    const transport::Transport& transport, const NodeSettings& node);

}  // namespace tandem::node
