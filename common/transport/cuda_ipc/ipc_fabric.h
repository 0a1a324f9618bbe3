#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/transport/cuda_ipc/device_copier.h"
#include "common/transport/direct/fabric.h"

namespace tandem::transport {

// Pages move by CUDA IPC: a sender exports its pool once per connection, the receiver maps it and
// copies out of it into its own pages on its own stream. Nobody else ever writes into a receiver's
// pool, so closing a receive needs no answer from the sender (docs/adr/0006). Works between
// processes on one GPU and between GPUs of one host that can reach each other.
struct IpcOptions {
  DeviceCopier::Options copier;
  size_t frame_bytes = 16u << 20;  // frames aim at this much
  // Where posted pages may lie: parts of allocations made by cudaMalloc, which are exported whole.
  // They outlive the transport.
  std::vector<std::span<std::byte>> memory;
  DirectWays ways = {};
};
[[nodiscard]] Result<std::unique_ptr<Fabric>> create_ipc_fabric(IpcOptions options);

}  // namespace tandem::transport
