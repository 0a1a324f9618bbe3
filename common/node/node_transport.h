#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/transport/transport.h"

namespace tandem::node {

// Told what an operator should know of the transport, e.g. that it is slower than expected. On the
// transport's thread.
using WarningHandler = std::function<void(const std::string&)>;

// What the choice of a transport depends on besides the configuration.
struct TransportPlace {
  std::optional<int> device = {};               // the GPU that holds the pool; empty: the host
  std::vector<std::string> libraries = {};      // folders searched first for NCCL
  std::vector<std::string> link_problems = {};  // GpuWatch::problems()
};
struct ChosenTransport {
  TransportChoice kind = TransportChoice::kUcx;  // never kAuto
  std::string reason;                            // for the log
};
// What `auto` means here; anything else is taken as it is.
[[nodiscard]] ChosenTransport choose_transport(const TransportSettings& settings,
                                               const TransportPlace& place);

// The transport that was chosen; never another one. inproc is refused with the reason: nodes are
// separate processes.
[[nodiscard]] Result<std::unique_ptr<transport::Transport>> open_transport(
    const ChosenTransport& chosen, const TransportSettings& settings, const TransportPlace& place,
    const transport::TransportDeps& deps, WarningHandler on_warning = {});

// For the handshake: libraries whose versions two nodes must share, e.g. {"ucx", "1.13.1"}; on a
// node with a GPU also "cuda_driver" and "cuda_runtime".
[[nodiscard]] std::map<std::string, std::string> library_versions(
    const transport::Transport& transport, const NodeSettings& node);

}  // namespace tandem::node
