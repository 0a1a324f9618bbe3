#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/preflight/rules.h"

namespace tandem::preflight {
namespace {

Status check_device(const DeviceChoice& device, const Machine& machine) {
  if (machine.devices.empty()) return fail(ErrorCode::kConfig, machine.no_devices);
  const int index = static_cast<int>(device.index);
  TANDEM_TRY(cuda::check_index(index, machine.devices));
  return cuda::check_architecture(machine.devices[device.index], machine.architectures);
}

void check_library(std::string_view name, const Node& node, const std::string& wants,
                   const Machine& machine, Findings& out) {
  for (const cuda::LibraryInfo& library : machine.libraries) {
    if (library.name != name || library.found) continue;
    out.push_back({.refuses = true,
                   .origin = {},
                   .key = "gpu.libraries",
                   .value = {},
                   .reason = "node " + node.settings->name + " with " + wants + " needs " +
                             library.name + ", and " + library.problem,
                   .remedy = "name its folder; it comes with the CUDA toolkit, PyTorch or "
                             "scripts/install-cuda.sh"});
  }
}

}  // namespace

void check_cards(const ClusterConfig& config, std::span<const Node> nodes, const Machine& machine,
                 Findings& out) {
  for (const std::string& folder : config.gpu.libraries) {
    std::error_code error;
    if (std::filesystem::is_directory(folder, error)) continue;
    out.push_back(warning("gpu.libraries", "there is no folder " + folder,
                          "NVIDIA's libraries are looked for in the other places only"));
  }
  for (const Node& node : nodes) {
    if (!node.device.cuda) continue;
    if (const Status there = check_device(node.device, machine); !there) {
      Finding finding = finding_of(node.key("device"), there.error());
      finding.reason = "node " + node.settings->name + ": " + finding.reason;
      out.push_back(std::move(finding));
      continue;
    }
    check_library("cuBLASLt", node, "device " + node.device.name(), machine, out);
    if (node.settings->transport.kind == TransportChoice::kNccl)
      check_library("NCCL", node, "transport nccl", machine, out);
  }
}

}  // namespace tandem::preflight
