#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.h"

// What NCCL moves by itself between two processes with a GPU each: the peer that the nccl transport
// is measured against. Free of CUDA headers; in a build without NCCL's headers both fail with
// kUnsupported.
namespace tandem::transport {

// Made by rank 0, needed by both.
[[nodiscard]] Result<std::string> nccl_peer_id(const std::vector<std::string>& libraries);

struct NcclPeerTask {
  std::string id;
  int rank = 0;  // 0 or 1
  int device = 0;
  std::vector<size_t> sizes;  // ascending
  size_t most_bytes = 0;      // of each measurement
};
// Bytes a second each way, one for each size.
struct NcclPeerRates {
  std::vector<double> one_way;    // 0 sends to 1
  std::vector<double> both_ways;  // each sends and receives, grouped
};
// Called by both processes; returns when both are through. One operation after the other.
[[nodiscard]] Result<NcclPeerRates> measure_nccl_peer(const NcclPeerTask& task,
                                                      const std::vector<std::string>& libraries);

}  // namespace tandem::transport
