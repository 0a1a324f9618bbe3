#include "tools/doctor/collect.h"

#include <algorithm>

#include "common/config/units.h"
#include "common/cuda/card_monitor.h"
#include "common/transport/ucx/worker.h"
#include "kernels/cpu/dispatch.h"

namespace tandem::doctor {
namespace {

void collect_cards(Report& report, std::span<const std::string> libraries) {
  auto monitor = cuda::CardMonitor::open(libraries);
  if (!monitor) {
    report.nvml_error = monitor.error().detail;
    return;
  }
  report.driver = monitor->driver_version();
  auto cards = monitor->read_all();
  auto topology = monitor->topology();
  if (!cards || !topology) {
    report.nvml_error = cards ? topology.error().detail : cards.error().detail;
    return;
  }
  report.cards = std::move(*cards);
  report.topology = std::move(*topology);
}

void collect_devices(Report& report) {
  if (const auto versions = cuda::cuda_versions()) report.cuda = *versions;
  auto devices = cuda::list_devices();
  if (devices) {
    report.devices = std::move(*devices);
  } else {
    report.cuda_error = devices.error().detail;
  }
}

void collect_transports(Report& report) {
  report.ucx_version = transport::UcxWorker::version();
  TransportFacts ucx{.name = "ucx", .usable = false, .detail = {}};
  const auto worker =
      transport::UcxWorker::create({.tls = "all"}, {.on_message = {}, .on_endpoint_failed = {}});
  if (worker) {
    ucx.usable = true;
    for (const std::string& lane : (*worker)->available()) {
      report.ucx_lanes.push_back(lane);
      if (lane.starts_with("cuda_")) report.ucx_knows_cuda = true;
      if (!ucx.detail.empty()) ucx.detail += ", ";
      ucx.detail += lane;
    }
  } else {
    ucx.detail = worker.error().detail;
  }
  report.transports.push_back(std::move(ucx));

  const auto nccl = std::find_if(report.libraries.begin(), report.libraries.end(),
                                 [](const cuda::LibraryInfo& l) { return l.name == "NCCL"; });
  const bool cards = !report.devices.empty();
  const std::string no_cards = report.built_with_cuda ? "no card" : "not in this build";
  report.transports.push_back({.name = "cuda_ipc",
                               .usable = cards,
                               .detail = cards ? "between processes of this host" : no_cards});
  report.transports.push_back({.name = "nccl",
                               .usable = cards && nccl->found,
                               .detail = !cards        ? no_cards
                                         : nccl->found ? "NCCL " + nccl->version
                                                       : "NCCL is missing"});
}

void collect_nodes(Report& report, const ClusterConfig& config) {
  auto add = [&report](const NodeSettings& node) {
    report.nodes.push_back({.name = node.name, .device = node.device});
  };
  for (const NodeSettings& node : config.prefill) add(node);
  for (const NodeSettings& node : config.decode) add(node);
}

}  // namespace

Report collect(const ClusterConfig* config, std::span<const std::string> libraries,
               const std::string& version) {
  Report report;
  report.version = version;
  report.built_with_cuda = cuda::built_with_cuda();
  report.architectures = cuda::built_architectures();
  report.system = read_system();
  report.kernels = cpu::to_string(cpu::best_isa());
  collect_devices(report);
  collect_cards(report, libraries);
  report.libraries = cuda::inspect_libraries(libraries);
  collect_transports(report);
  if (config != nullptr) collect_nodes(report, *config);
  return report;
}

}  // namespace tandem::doctor
