#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/transport/cuda_ipc/device_copier.h"
#include "common/transport/device_transports.h"
#include "common/transport/direct/fabric.h"

namespace tandem::transport {

// Pages move by NCCL: the sender's copier gathers a frame's pages into a slot, the slot goes as one
// message (64 messages of 32 KiB would run at 7 GB/s), the receiver's copier scatters it. A
// connection has communicators of two ranks, built in the background. A receiver lets a slot
// come only once it has one free, so that no send waits in the device for a receiver that will not
// come. A communicator is aborted when its connection breaks and when an operation takes longer
// than kOperationTime: a device that waits for a dead or frozen peer computes nothing.
struct NcclOptions {
  DirectWays ways = {};
  DeviceCopier::Options copier;
  std::vector<std::string> library_folders = {};
  size_t frame_bytes = 16u << 20;    // what frames aim at
  size_t message_bytes = 16u << 20;  // of several frames together, at most
  // For messages to send, and as much for those to receive.
  size_t slot_bytes = kNcclMemory.messages / 2;
  // Communicators of one connection, which take turns.
  uint32_t lanes = 2;
  // Messages of one launch and their bytes, at most; a launch costs some 10 us.
  uint32_t most_grouped = 16;
  size_t group_bytes = 32u << 20;
  // Multiprocessors that one lane may use; 0: as many as NCCL likes.
  int ctas = 0;
  // NCCL joins no two processes on one GPU unless NCCL_HOSTID makes it take them for two hosts.
  // Only tests do that.
  bool allow_one_gpu = false;
};
[[nodiscard]] Result<std::unique_ptr<Fabric>> create_nccl_fabric(const NcclOptions& options);

}  // namespace tandem::transport
