#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/transport.h"

// The transports between GPUs, free of CUDA headers. In a build without CUDA both fail with
// kUnsupported and say so.
namespace tandem::transport {

// What a transport takes of its device beside the pool; cuda_ipc takes none.
struct DeviceTransportMemory {
  uint64_t messages = 0;       // when it is created: half for what it sends, half for the rest
  uint64_t first_peer = 0;     // with the first connection
  uint64_t each_receiver = 0;  // that it sends to
  uint64_t each_sender = 0;    // that it receives from
};
// Of NCCL as measured with 2.28.9 between two H200 (NV18): a connection has two communicators of
// two ranks, each of 262 MiB at the sender and 518 at the receiver; its kernels take 436 once.
inline constexpr DeviceTransportMemory kNcclMemory = {.messages = uint64_t{480} << 20,
                                                      .first_peer = uint64_t{440} << 20,
                                                      .each_receiver = uint64_t{530} << 20,
                                                      .each_sender = uint64_t{1040} << 20};
inline constexpr DeviceTransportMemory kUcxDeviceMemory = {.messages = uint64_t{320} << 20};

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
// Whether that transport would be created: kUnsupported and why not.
[[nodiscard]] Status check_ucx_device(int device, const std::string& tls);
// Processes of one host on a GPU each (nccl/nccl_fabric.h).
[[nodiscard]] Result<std::unique_ptr<Transport>> create_nccl_transport(
    const DeviceTransportOptions& options, const TransportDeps& deps);

}  // namespace tandem::transport
