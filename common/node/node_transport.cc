#include "common/node/node_transport.h"

#include <utility>

#include "common/config/units.h"
#include "common/cuda/device_info.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::node {

Result<std::unique_ptr<transport::Transport>> open_transport(const TransportSettings& settings,
                                                             const transport::TransportDeps& deps,
                                                             WarningHandler on_warning) {
  switch (settings.kind) {
    case TransportChoice::kUcx:
      return transport::create_ucx_transport(
          {.tls = settings.ucx_tls, .on_warning = std::move(on_warning)}, deps);
    case TransportChoice::kInproc:
      break;
  }
  return fail(ErrorCode::kConfig,
              "transport 'inproc' joins nodes inside of one process only; these are separate "
              "processes: use 'ucx'",
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
