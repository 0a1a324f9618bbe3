#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/cuda/device_info.h"
#include "common/cuda/libraries.h"

namespace tandem::preflight {

// What a machine has that cluster files ask for.
struct Machine {
  uint32_t cpus = 1;                         // that this process may use
  uint64_t threads = 0;                      // see machine_threads()
  std::function<Status(uint32_t)> can_pin;   // a compute thread to that CPU
  uint64_t memory_bytes = 0;                 // see machine_memory()
  std::vector<cuda::DeviceInfo> devices;     // read where a node asks for a card
  std::string no_devices;                    // why there are none
  std::string architectures;                 // that this build has GPU code for
  std::vector<cuda::LibraryInfo> libraries;  // NVIDIA's; read likewise
  std::function<Status(const std::string& tls, std::vector<std::string>& warnings)> check_ucx;
};

// Looks at this machine. Takes about a second where the file names cards, else nothing.
[[nodiscard]] Machine read_machine(const ClusterConfig& config);

}  // namespace tandem::preflight
