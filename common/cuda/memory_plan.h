#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"

// Decides at load how large the KV pool of a card may be: what weights, activations and workspace
// leave of this process's share. Pure; free of CUDA headers.
namespace tandem::cuda {

// What a process has taken already for one purpose, or is going to take. `remedy` says how to make
// it smaller.
struct MemoryPart {
  std::string name;  // "weights"
  uint64_t bytes = 0;
  std::string remedy = {};  // "lower max_batch_tokens"
};
[[nodiscard]] uint64_t bytes_of(const std::vector<MemoryPart>& parts);

// Another process on the same card, as NVML lists it. Inside of containers the list may be empty.
struct MemoryNeighbour {
  uint32_t pid = 0;
  std::string name;
  uint64_t bytes = 0;
};

struct MemoryRequest {
  std::string device;        // "device 0 (NVIDIA H200)", for messages
  uint64_t total_bytes = 0;  // of the card
  uint64_t free_bytes = 0;   // now, with this process's context taken
  bool taken = true;         // `parts` are taken already, and not free
  // This process may use that share of the card when the KV pool takes what is left.
  double utilization = 0.9;
  // Kept free for what CUDA takes by itself later: recorded graphs, kernels' code and local memory,
  // cuBLASLt's own buffers.
  uint64_t reserve_bytes = 0;
  std::vector<MemoryPart> parts;
  std::vector<MemoryPart> later;  // what this process takes once the pool is there
  uint64_t kv_block_bytes = 0;    // one block in all layers
  uint64_t kv_tail_bytes = 0;     // all open pages
  uint64_t kv_blocks = 0;         // 0: as many as fit
  uint64_t kv_least_blocks = 4;
  uint64_t kv_most_blocks = uint64_t{1} << 30;
  std::vector<MemoryNeighbour> neighbours;
};

// The number of KV blocks: the one asked for, or as many as fit. kResourceExhausted when it does
// not fit: the text names every part with its bytes, the share allowed, who else uses the card, and
// what to change.
[[nodiscard]] Result<uint64_t> plan_kv_blocks(const MemoryRequest& request);

// "weights 14.2 GiB, activations 310 MiB, KV cache 102.0 GiB (119000 blocks), …" for the log.
[[nodiscard]] std::string describe(const MemoryRequest& request, uint64_t kv_blocks);

// What to say when an allocation fails although the plan fitted: others took memory meanwhile.
[[nodiscard]] Error lost_race(const MemoryRequest& request, uint64_t kv_blocks,
                              uint64_t free_bytes_now);

}  // namespace tandem::cuda
