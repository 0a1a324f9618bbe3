#include "common/preflight/machine.h"

#include "common/base/machine_limits.h"
#include "common/base/process_limits.h"
#include "common/engine/cpu/thread_pool.h"
#include "common/preflight/nodes.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::preflight {

Machine read_machine(const ClusterConfig& config) {
  Machine machine;
  machine.cpus = usable_cpus();
  machine.can_pin = [](uint32_t cpu) { return engine::can_pin(static_cast<int>(cpu)); };
  machine.threads = machine_threads();
  machine.memory_bytes = machine_memory();
  machine.check_ucx = [](const std::string& tls, std::vector<std::string>& warnings) {
    return transport::check_ucx(
        {.tls = tls, .on_warning = [&](const std::string& line) { warnings.push_back(line); }});
  };
  bool cards = false;
  for (const Node& node : nodes_of(config)) cards = cards || node.device.cuda;
  if (!cards) return machine;
  machine.architectures = cuda::built_architectures();
  auto devices = cuda::list_devices();
  if (devices) {
    machine.devices = std::move(*devices);
  } else {
    machine.no_devices = devices.error().detail;
  }
  machine.libraries = cuda::inspect_libraries(config.gpu.libraries);
  return machine;
}

}  // namespace tandem::preflight
