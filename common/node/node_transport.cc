#include "common/node/node_transport.h"

#include <algorithm>
#include <utility>

#include "common/config/units.h"
#include "common/cuda/device_info.h"
#include "common/transport/device_transports.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::node {

namespace {

const NodeSettings* node_in_host_memory(const ClusterConfig& config) {
  const auto on_host = [](const NodeSettings& node) {
    const auto device = parse_device(node.device);
    return device && !device->cuda;
  };
  for (const NodeSettings& node : config.prefill) {
    if (on_host(node)) return &node;
  }
  for (const NodeSettings& node : config.decode) {
    if (on_host(node)) return &node;
  }
  return nullptr;
}

std::string add_line(std::string text, const std::string& line) {
  return text.empty() ? line : text + "; " + line;
}

// What is wrong with the ways between the cards, link by link.
struct LinkFaults {
  std::string avoided;   // no direct way, or too little left of it
  std::string degraded;  // a direct way that is slower than it should be
};

LinkFaults faults_of(const std::vector<CardLink>& links) {
  LinkFaults faults;
  for (const CardLink& link : links) {
    const cuda::PairVerdict verdict = cuda::judge_pair(link.pair, link.problems_a, link.problems_b);
    const std::string line = link.name() + ": " + verdict.reason;
    if (!verdict.peer_access) {
      faults.avoided = add_line(std::move(faults.avoided), line);
    } else if (verdict.degraded) {
      faults.degraded = add_line(std::move(faults.degraded), line);
    }
  }
  return faults;
}

ChosenTransport choose_by_links(const std::vector<CardLink>& links) {
  const LinkFaults faults = faults_of(links);
  if (!faults.avoided.empty()) {
    const std::string text = faults.avoided + "; going through the host";
    return {TransportChoice::kUcx, TransportReason::kLinkAvoided, text, text};
  }
  if (!faults.degraded.empty()) {
    const std::string text = faults.degraded + "; still faster than through the host";
    return {TransportChoice::kCudaIpc, TransportReason::kDegradedLink, text, text};
  }
  return {TransportChoice::kCudaIpc,
          TransportReason::kDirect,
          "the GPUs of this file's nodes reach each other directly",
          {}};
}

// The configuration's word holds; that its way is no good is told all the same.
ChosenTransport take_configured(TransportChoice kind, const std::vector<CardLink>& links) {
  ChosenTransport chosen{kind, TransportReason::kConfigured, "transport.kind names it", {}};
  const LinkFaults faults = faults_of(links);
  if (!faults.avoided.empty()) {
    chosen.warning = faults.avoided + "; transport.kind: auto would go through the host";
  } else if (!faults.degraded.empty()) {
    chosen.warning = faults.degraded + "; still faster than through the host";
  }
  return chosen;
}

bool names_cuda(const TransportSettings& settings) {
  return settings.ucx_tls.find("cuda") != std::string::npos;
}

bool uses_links(TransportChoice kind) {
  return kind == TransportChoice::kAuto || kind == TransportChoice::kCudaIpc ||
         kind == TransportChoice::kNccl;
}

}  // namespace

std::string_view label(TransportReason reason) {
  switch (reason) {
    case TransportReason::kConfigured:
      return "configured";
    case TransportReason::kHostMemory:
      return "host_memory";
    case TransportReason::kPeerHostMemory:
      return "peer_host_memory";
    case TransportReason::kPeersElsewhere:
      return "peers_elsewhere";
    case TransportReason::kLinkAvoided:
      return "link_avoided";
    case TransportReason::kDegradedLink:
      return "degraded_link";
    case TransportReason::kDirect:
      return "direct";
  }
  return "unknown";
}

TransportPlace transport_place(const ClusterConfig& config, const NodeSettings& node,
                               const CardReadings& readings) {
  TransportPlace place;
  const auto device = parse_device(node.device);
  if (!device || !device->cuda) return place;
  place.device = device->index;
  if (const NodeSettings* host = node_in_host_memory(config); host != nullptr) {
    place.host_node = host->name;
  } else if (uses_links(node.transport.kind)) {
    place.links = read_card_links(card_pairs(config), readings);
  }
  return place;
}

ChosenTransport choose_transport(const TransportSettings& settings, const TransportPlace& place) {
  if (settings.kind != TransportChoice::kAuto) {
    return take_configured(settings.kind, place.links);
  }
  if (!place.device) {
    return {TransportChoice::kUcx, TransportReason::kHostMemory, "KV lies in host memory", {}};
  }
  if (!place.host_node.empty()) {
    return {TransportChoice::kUcx,
            TransportReason::kPeerHostMemory,
            "KV of node " + place.host_node + " lies in host memory",
            {}};
  }
  if (place.links.empty()) {
    return {TransportChoice::kUcx,
            TransportReason::kPeersElsewhere,
            "this file has no nodes of the other role: they are on other hosts",
            {}};
  }
  return choose_by_links(place.links);
}

TransportPeers transport_peers(const ClusterConfig& config, bool is_prefill) {
  const size_t others = is_prefill ? config.decode.size() : config.prefill.size();
  TransportPeers peers;
  (is_prefill ? peers.receivers : peers.senders) = std::max<size_t>(others, 1);
  return peers;
}

std::vector<cuda::MemoryPart> transport_memory(TransportChoice kind, const DeviceChoice& device,
                                               bool ucx_on_card, const TransportPeers& peers) {
  if (!device.cuda) return {};
  const auto part = [&](const transport::DeviceTransportMemory& memory) {
    const size_t count = peers.receivers + peers.senders;
    return std::vector<cuda::MemoryPart>{
        {.name = "transport " + std::string(kTransportChoiceNames[static_cast<size_t>(kind)]) +
                 (peers.senders > 0 ? " from " : " to ") + std::to_string(count) +
                 (count == 1 ? " peer" : " peers"),
         .bytes = memory.messages + (count > 0 ? memory.first_peer : 0) +
                  peers.receivers * memory.each_receiver + peers.senders * memory.each_sender,
         .remedy = "set transport.kind to cuda_ipc"}};
  };
  switch (kind) {
    case TransportChoice::kNccl:
      return part(transport::kNcclMemory);
    case TransportChoice::kUcx:
      if (ucx_on_card) return part(transport::kUcxDeviceMemory);
      return {};
    case TransportChoice::kAuto:
    case TransportChoice::kCudaIpc:
    case TransportChoice::kInproc:
      break;
  }
  return {};
}

bool ucx_on_card(const TransportSettings& settings, const DeviceChoice& device) {
  return device.cuda && names_cuda(settings) &&
         transport::check_ucx_device(static_cast<int>(device.index), settings.ucx_tls).has_value();
}

Status check_kind(TransportChoice kind, const DeviceChoice& device) {
  const std::string name(kTransportChoiceNames[static_cast<size_t>(kind)]);
  switch (kind) {
    case TransportChoice::kAuto:
    case TransportChoice::kUcx:
      return {};
    case TransportChoice::kCudaIpc:
    case TransportChoice::kNccl:
      if (device.cuda) return {};
      return fail(ErrorCode::kConfig,
                  name +
                      " moves pages of a GPU, and this node's are on the host; use auto or ucx, "
                      "or device: cuda",
                  "transport.kind");
    case TransportChoice::kInproc:
      return fail(ErrorCode::kConfig,
                  name +
                      " joins nodes inside of one process only, and these are separate "
                      "processes; use auto, cuda_ipc, nccl or ucx",
                  "transport.kind");
  }
  return {};
}

Result<std::unique_ptr<transport::Transport>> open_transport(
    const ChosenTransport& chosen, const TransportSettings& settings,
    std::optional<uint32_t> device, const std::vector<std::string>& libraries,
    const transport::TransportDeps& deps, WarningHandler on_warning) {
  const transport::DeviceTransportOptions device_options{
      .device = static_cast<int>(device.value_or(0)),
      .libraries = libraries,
      .on_warning = on_warning};
  TANDEM_TRY(check_kind(chosen.kind, {.cuda = device.has_value(), .index = device.value_or(0)}));
  switch (chosen.kind) {
    case TransportChoice::kUcx:
      if (device && names_cuda(settings)) {
        auto direct =
            transport::create_ucx_device_transport(device_options, settings.ucx_tls, deps);
        if (direct || direct.error().code != ErrorCode::kUnsupported) return direct;
        if (on_warning) {
          on_warning("transport.ucx_tls names CUDA, but KV goes through pinned host buffers: " +
                     direct.error().detail);
        }
      }
      return transport::create_ucx_transport(
          {.tls = settings.ucx_tls, .on_warning = std::move(on_warning)}, deps);
    case TransportChoice::kCudaIpc:
      return transport::create_cuda_ipc_transport(device_options, deps);
    case TransportChoice::kNccl:
      return transport::create_nccl_transport(device_options, deps);
    case TransportChoice::kAuto:
    case TransportChoice::kInproc:
      break;
  }
  return fail(ErrorCode::kInternal, "no transport was chosen");
}

std::map<std::string, std::string> library_versions(std::string_view transport,
                                                    const std::string& detail,
                                                    const std::optional<cuda::CudaVersions>& cuda) {
  std::map<std::string, std::string> versions;
  if (cuda) {
    versions.emplace("cuda_driver", cuda::version_text(cuda->driver));
    versions.emplace("cuda_runtime", cuda::version_text(cuda->runtime));
  }
  // cuda_ipc has no library of its own, and its detail() names the CUDA level.
  if (transport != "ucx" && transport != "nccl") return versions;
  // "ucx 1.13.1: shared memory, tcp"
  const std::string head = std::string(transport) + " ";
  const size_t colon = detail.find(':');
  if (detail.starts_with(head) && colon != std::string::npos && colon > head.size()) {
    versions.emplace(transport, detail.substr(head.size(), colon - head.size()));
  }
  return versions;
}

}  // namespace tandem::node
