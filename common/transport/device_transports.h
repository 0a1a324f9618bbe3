#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/transport.h"

// The transports between GPUs, free of CUDA headers. In a build without CUDA both fail with
// kUnsupported and say so.
namespace tandem::transport {

struct DeviceTransportOptions {
  int device = 0;                      // deps.memory lies on it
  std::vector<std::string> libraries;  // folders searched first for NCCL
  std::function<void(const std::string&)> on_warning = {};
};

// Processes of one host whose GPUs reach each other, or on one GPU (cuda_ipc/ipc_fabric.h).
[[nodiscard]] Result<std::unique_ptr<Transport>> create_cuda_ipc_transport(
    const DeviceTransportOptions& options, const TransportDeps& deps);
// Processes of one host whose UCX knows CUDA memory over the transports named (ucx/ucx_fabric.h);
// kUnsupported where it does not.
[[nodiscard]] Result<std::unique_ptr<Transport>> create_ucx_device_transport(
    const DeviceTransportOptions& options, const std::string& tls, const TransportDeps& deps);
// Processes of one host on a GPU each (nccl/nccl_fabric.h).
[[nodiscard]] Result<std::unique_ptr<Transport>> create_nccl_transport(
    const DeviceTransportOptions& options, const TransportDeps& deps);

}  // namespace tandem::transport
