#include "common/node/node_transport.h"

#include <utility>

#include "common/config/units.h"
#include "common/cuda/device_info.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::node {

namespace {

Result<std::unique_ptr<transport::Transport>> open_ucx(const TransportSettings& settings,
                                                       const kv::PageMemory& memory,
                                                       const transport::TransportDeps& deps,
                                                       WarningHandler on_warning) {
  if (!memory.device().empty()) {
    return fail(ErrorCode::kConfig,
                "transport 'ucx' moves pages of host memory, and this node keeps them on " +
                    std::string(memory.device()) + ": use 'cuda_ipc' between nodes of one host",
                "transport.kind");
  }
  return transport::create_ucx_transport(
      {.tls = settings.ucx_tls, .on_warning = std::move(on_warning)}, deps);
}

}  // namespace

Result<std::unique_ptr<transport::Transport>> open_transport(const TransportSettings& settings,
                                                             const kv::PageMemory& memory,
                                                             const transport::TransportDeps& deps,
                                                             WarningHandler on_warning) {
  switch (settings.kind) {
    case TransportChoice::kAuto:
      if (memory.device().empty()) return open_ucx(settings, memory, deps, std::move(on_warning));
      return open_cuda_ipc(memory, deps, std::move(on_warning));
    case TransportChoice::kUcx:
      return open_ucx(settings, memory, deps, std::move(on_warning));
    case TransportChoice::kCudaIpc:
      return open_cuda_ipc(memory, deps, std::move(on_warning));
    case TransportChoice::kInproc:
      break;
  }
  return fail(ErrorCode::kConfig,
              "transport 'inproc' joins nodes inside of one process only; these are separate "
              "processes: use 'auto', 'ucx' or 'cuda_ipc'",
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
