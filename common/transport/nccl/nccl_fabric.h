#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/transport/cuda_ipc/device_copier.h"
#include "common/transport/direct/fabric.h"

namespace tandem::transport {

// Pages move by NCCL: the sender's copier gathers a frame's pages into a slot, the slot goes as one
// message (64 messages of 32 KiB would run at 7 GB/s), the receiver's copier scatters it. One
// communicator of two ranks for each connection, built in the background. A receiver lets a slot
// come only once it has one free, so that no send waits in the device for a receiver that will not
// come. A communicator is aborted when its connection breaks and when an operation takes longer
// than kOperationTime: a device that waits for a dead or frozen peer computes nothing.
struct NcclOptions {
  DeviceCopier::Options copier;
  std::vector<std::string> library_folders = {};
  size_t slot_bytes = 8u << 20;
  uint32_t slots = 24;  // for sending, and as many for receiving
  // Messages of one launch, at most; launching costs some 50 us whatever their number.
  uint32_t most_grouped = 8;
  // NCCL joins no two processes on one GPU unless NCCL_HOSTID makes it take them for two hosts.
  // Only tests do that.
  bool allow_one_gpu = false;
};
[[nodiscard]] Result<std::unique_ptr<Fabric>> create_nccl_fabric(const NcclOptions& options);

}  // namespace tandem::transport
