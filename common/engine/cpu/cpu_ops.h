#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/engine/host_ops.h"
#include "kernels/cpu/dispatch.h"

namespace tandem::engine {

struct CpuOptions {
  // Threads that compute, the device thread included. 0: one per CPU this process may use.
  uint32_t threads = 0;
  // CPUs to pin them to, the first one for the device thread; empty: the scheduler places them. Pin
  // only CPUs that nothing else computes on.
  std::vector<int> cpus;
  DType weights = DType::kBf16;  // kF32 or kBf16; whatever the checkpoint holds is converted to it
  // Instruction set of the kernels; unset: the best one that this machine and system support.
  std::optional<cpu::CpuIsa> isa;
};

// Starts the threads. The first thread that calls an op is the device thread from then on: it leads
// the pool, and is pinned to cpus[0]. Activations are float32. A row's results depend neither on
// the number of threads nor on which other rows share a step.
[[nodiscard]] Result<std::unique_ptr<HostOps>> create_cpu_ops(const CpuOptions& options);

}  // namespace tandem::engine
