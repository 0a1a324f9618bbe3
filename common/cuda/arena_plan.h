#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"

// Plans a card's memory once, at load: everything that serving needs lies in one allocation, and
// the KV pool takes what is left of this process's share. Pure; free of CUDA headers.
namespace tandem::cuda {

// A piece with a known size. `remedy` says how to make it smaller, for when it does not fit.
struct ArenaPart {
  std::string name;  // "weights"
  uint64_t bytes = 0;
  std::string remedy = {};  // "lower max_batch_tokens"
  // Used by prefill alone: such parts lie side by side at the end, right behind the KV pool, so
  // that they are one span which can serve as KV memory while no prefill runs.
  bool lendable = false;
};

// Another process on the same card, as NVML lists it. Inside of containers the list may be empty.
struct ArenaNeighbour {
  uint32_t pid = 0;
  std::string name;
  uint64_t bytes = 0;
};

struct ArenaRequest {
  std::string device;        // "device 0 (NVIDIA H200)", for messages
  uint64_t total_bytes = 0;  // of the card
  uint64_t free_bytes = 0;   // now, this process's context already made
  // Of `parts`, what this process holds already (weights allocated while loading); not in
  // free_bytes.
  uint64_t taken_bytes = 0;
  // This process may use that share of the card when the KV pool takes what is left.
  double utilization = 0.9;
  // Kept free for what CUDA takes by itself after the plan: recorded graphs, kernels' code and
  // local memory, cuBLASLt's own buffers.
  uint64_t reserve_bytes = 0;
  std::vector<ArenaPart> parts;
  uint64_t kv_block_bytes = 0;  // one block in all layers
  uint64_t kv_tail_bytes = 0;   // all tail pages
  uint64_t kv_blocks = 0;       // 0: as many as fit
  uint64_t kv_least_blocks = 4;
  uint64_t kv_most_blocks = uint64_t{1} << 30;
  std::vector<ArenaNeighbour> neighbours;
};

struct ArenaSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct ArenaPlan {
  std::vector<ArenaSpan> parts;  // in the order of the request
  ArenaSpan kv_pages;
  ArenaSpan kv_tails;
  ArenaSpan lendable;  // the lendable parts together, directly behind kv_pages
  uint64_t kv_blocks = 0;
  uint64_t bytes = 0;  // of the one allocation
};

// Every span begins at a multiple of this, enough for any load width and TMA.
inline constexpr uint64_t kArenaAlignment = 1024;

// kResourceExhausted when it does not fit: the text names every part with its bytes, the share
// allowed, who else uses the card, and what to change.
[[nodiscard]] Result<ArenaPlan> plan_arena(const ArenaRequest& request);

// "weights 14.2 GiB, activations 310 MiB, KV cache 102.0 GiB (119000 blocks), …" for the log.
[[nodiscard]] std::string describe(const ArenaRequest& request, const ArenaPlan& plan);

// What to say when the allocation fails although the plan fitted: others took memory meanwhile.
[[nodiscard]] Error arena_race(const ArenaRequest& request, const ArenaPlan& plan,
                               uint64_t free_bytes_now);

}  // namespace tandem::cuda
