#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/engine/cuda/bench/device_bench.h"

namespace tandem::bench {

// Where one end of a transfer lies and how it sends.
struct TransferPlace {
  std::string transport;  // "cuda_ipc", "nccl", "ucx"
  int device = 0;         // -1: host memory, for ucx
  uint32_t largest_mib = 256;
  std::string ucx_tls;  // as in UCX_TLS; empty: the transport's default
};

struct TransferBenchOptions {
  int from = 0;
  int to = 0;                                          // the same card: both processes work on it
  std::vector<std::string> transports = {"cuda_ipc"};  // "cuda_ipc", "nccl", "ucx"
  uint32_t largest_mib = 256;                          // message
  std::vector<std::string> libraries;                  // folders searched first for NCCL
  std::string perftest = "ucx_perftest";               // UCX's own; empty: left out
  std::string ucx_tls;                                 // see TransferPlace
};

// KV pages pushed between this process and one that it starts, one way and both ways at once, by
// message size (what a layer posts: whole pages of 64 KiB in a row), against plain copies of the
// same size between the same memories, plain NCCL sends and UCX's perftest. `program` starts the
// other end: this program with words that make it call serve_transfers().
[[nodiscard]] Result<Ceilings> bench_transfers(const TransferBenchOptions& options,
                                               const std::vector<std::string>& program,
                                               const RowSink& sink);

// The other end; returns when standard input ends.
[[nodiscard]] Status serve_transfers(const TransferPlace& place,
                                     const std::vector<std::string>& libraries);

}  // namespace tandem::bench
