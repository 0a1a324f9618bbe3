#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/config/units.h"
#include "common/cuda/device_info.h"
#include "common/cuda/memory_plan.h"
#include "common/node/card_links.h"
#include "common/transport/transport.h"

namespace tandem::node {

// Told what an operator should know of the transport, e.g. that it is slower than expected. On the
// transport's thread.
using WarningHandler = std::function<void(const std::string&)>;

// What the choice of a transport depends on besides the configuration's own word. All nodes of a
// file need the same transport, so it holds what all of them see alike.
struct TransportPlace {
  std::optional<uint32_t> device = {};  // the GPU that holds this node's pool; empty: the host
  std::string host_node = {};           // a node of the file whose pool is in host memory, if any
  std::vector<CardLink> links = {};     // empty: the file has no node of the other role
};
// Reads the cards' links where they matter for the choice.
[[nodiscard]] TransportPlace transport_place(const ClusterConfig& config, const NodeSettings& node,
                                             const CardReadings& readings);

enum class TransportReason : uint8_t {
  kConfigured,      // transport.kind names it
  kHostMemory,      // this node's pool is in host memory
  kPeerHostMemory,  // another node's is
  kPeersElsewhere,  // the nodes of the other role are not in this file
  kLinkAvoided,     // no direct way between two cards, or one too degraded
  kDegradedLink,    // a direct way that is slower than it should be, and still the fastest
  kDirect,          // cards that reach each other as they should
};
[[nodiscard]] std::string_view label(TransportReason reason);  // for metrics

struct ChosenTransport {
  TransportChoice kind = TransportChoice::kUcx;  // never kAuto
  TransportReason reason = TransportReason::kConfigured;
  std::string text;     // the reason in a sentence, for the log and the status page
  std::string warning;  // links that are not as they should be, and what that means; empty: none
};
// What `auto` means here; anything else is taken as it is, with a warning where the links that it
// uses are no good. Pure.
[[nodiscard]] ChosenTransport choose_transport(const TransportSettings& settings,
                                               const TransportPlace& place);

// What that transport takes of a node's card beside its pool, when it sends to so many nodes and
// receives from so many. Nothing for pools in host memory. `ucx_on_card`: as ucx_on_card() says.
struct TransportPeers {
  size_t receivers = 0;
  size_t senders = 0;
};
// Those of a node of this file; one where the file has none of the other role: they are elsewhere.
[[nodiscard]] TransportPeers transport_peers(const ClusterConfig& config, bool is_prefill);
[[nodiscard]] std::vector<cuda::MemoryPart> transport_memory(TransportChoice kind,
                                                             const DeviceChoice& device,
                                                             bool ucx_on_card,
                                                             const TransportPeers& peers);
// Whether a node whose transport is ucx keeps messages on its card: UCX is asked, which makes the
// card's context.
[[nodiscard]] bool ucx_on_card(const TransportSettings& settings, const DeviceChoice& device);

// What is wrong with a transport.kind for a node on that device, whatever the machine has: nodes
// are separate processes, and some transports move pages of GPUs only.
[[nodiscard]] Status check_kind(TransportChoice kind, const DeviceChoice& device);

// The transport that was chosen; never another one. What check_kind() refuses is refused.
// `libraries`: folders searched first for NCCL.
[[nodiscard]] Result<std::unique_ptr<transport::Transport>> open_transport(
    const ChosenTransport& chosen, const TransportSettings& settings,
    std::optional<uint32_t> device, const std::vector<std::string>& libraries,
    const transport::TransportDeps& deps, WarningHandler on_warning = {});

// For the handshake: libraries whose versions two nodes must share: {"ucx", "1.13.1"} of a
// transport (its name() and detail()), and "cuda_driver" and "cuda_runtime" of a node with a GPU.
// Both are levels of CUDA ("13.0"): what two processes must have in common to share a card's
// memory. The driver's own number ("580.95.05") is not compared: processes of one host have the
// same driver, and those of two hosts share no memory, so that drivers can be replaced host by
// host.
[[nodiscard]] std::map<std::string, std::string> library_versions(
    std::string_view transport, const std::string& detail,
    const std::optional<cuda::CudaVersions>& cuda);

}  // namespace tandem::node
