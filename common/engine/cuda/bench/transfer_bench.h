#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/engine/cuda/bench/device_bench.h"

namespace tandem::bench {

struct TransferBenchOptions {
  int from = 0;
  int to = 0;                                          // the same card: both processes work on it
  std::vector<std::string> transports = {"cuda_ipc"};  // "cuda_ipc", "nccl"
  uint32_t largest_mib = 256;                          // message
  std::vector<std::string> libraries;                  // folders searched first for NCCL
};

// KV pages pushed from this process to one that it starts, by message size (what a layer posts:
// whole pages of 64 KiB in a row), against plain copies of the same size between the same cards.
// `program` starts the other end: this program with words that make it call receive_transfers().
[[nodiscard]] Result<Ceilings> bench_transfers(const TransferBenchOptions& options,
                                               const std::vector<std::string>& program,
                                               const RowSink& sink);

// The other end; returns when standard input ends.
[[nodiscard]] Status receive_transfers(const std::string& transport, int device,
                                       uint32_t largest_mib,
                                       const std::vector<std::string>& libraries);

}  // namespace tandem::bench
