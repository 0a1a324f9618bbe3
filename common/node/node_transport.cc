#include "common/node/node_transport.h"

#include <utility>

#include "common/config/units.h"
#include "common/cuda/device_info.h"
#include "common/transport/device_transports.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::node {

ChosenTransport choose_transport(const TransportSettings& settings, const TransportPlace& place) {
  if (settings.kind != TransportChoice::kAuto) {
    return {settings.kind, "transport.kind names it"};
  }
  if (!place.device) return {TransportChoice::kUcx, "KV lies in host memory"};
  if (!place.link_problems.empty()) {
    std::string problems;
    for (const std::string& problem : place.link_problems) {
      problems += (problems.empty() ? "" : "; ") + problem;
    }
    return {TransportChoice::kUcx, "the GPU's links are not sound: " + problems};
  }
  return {TransportChoice::kCudaIpc, "KV lies on cuda:" + std::to_string(*place.device)};
}

Result<std::unique_ptr<transport::Transport>> open_transport(const ChosenTransport& chosen,
                                                             const TransportSettings& settings,
                                                             const TransportPlace& place,
                                                             const transport::TransportDeps& deps,
                                                             WarningHandler on_warning) {
  const transport::DeviceTransportOptions device{
      .device = place.device.value_or(0), .libraries = place.libraries, .on_warning = on_warning};
  switch (chosen.kind) {
    case TransportChoice::kUcx:
      return transport::create_ucx_transport(
          {.tls = settings.ucx_tls, .on_warning = std::move(on_warning)}, deps);
    case TransportChoice::kCudaIpc:
      return transport::create_cuda_ipc_transport(device, deps);
    case TransportChoice::kNccl:
      return transport::create_nccl_transport(device, deps);
    case TransportChoice::kAuto:
    case TransportChoice::kInproc:
      break;
  }
  return fail(ErrorCode::kConfig,
              "transport 'inproc' joins nodes inside of one process only; these are separate "
              "processes: use 'auto', 'cuda_ipc', 'nccl' or 'ucx'",
              "transport.kind");
}

std::map<std::string, std::string> library_versions(const transport::Transport& transport,
                                                    const NodeSettings& node) {
  std::map<std::string, std::string> versions;
  const auto device = parse_device(node.device);
  if (device && device->cuda) {
    if (const auto cuda = cuda::cuda_versions()) {
      versions.emplace("cuda_driver", cuda::version_text(cuda->driver));
      versions.emplace("cuda_runtime", cuda::version_text(cuda->runtime));
    }
  }
  // detail() begins with the library and its version: "ucx 1.13.1: posix, cma, tcp".
  const std::string detail = transport.detail();
  const size_t space = detail.find(' ');
  const size_t colon = detail.find(':');
  const bool has_library = transport.name() == "ucx" || transport.name() == "nccl";
  if (has_library && space != std::string::npos && colon != std::string::npos && space < colon) {
    versions.emplace(transport.name(), detail.substr(space + 1, colon - space - 1));
  }
  return versions;
}

}  // namespace tandem::node
