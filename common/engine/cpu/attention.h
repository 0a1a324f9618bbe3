#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/cpu/kv_pages.h"
#include "common/engine/cpu/thread_pool.h"
#include "common/engine/ops.h"
#include "kernels/cpu/kernels.h"

namespace tandem::engine {

// Causal attention over paged KV. Keys are taken in partitions of kPartitionKeys at fixed
// positions, each attended to from an empty state and merged in order, so a query's result is the
// same whether one thread walks over all partitions (prefill) or several share them (decode on a
// long context). Device thread only; keeps scratch between calls.
class AttentionRunner {
 public:
  AttentionRunner(ThreadPool& pool, const cpu::KernelTable& kernels);
  void run(const StepView& step, uint32_t layer, const AttentionShape& shape, Activation qkv,
           const KvPages& kv, const KvWriter& writer, Activation out);

 private:
  // Some consecutive queries of one sequence, with all heads that share a KV head.
  struct Tile {
    uint32_t sequence = 0;
    uint32_t kv_head = 0;
    uint32_t begin = 0;  // positions
    uint32_t end = 0;
    uint32_t first_partition = 0;
    uint32_t partitions = 0;
    int64_t part = -1;  // first slot of its partial results when partitions are shared, else -1
  };
  struct Item {
    uint32_t tile = 0;
    uint32_t partition = 0;
  };
  struct State {
    float* max = nullptr;
    float* sum = nullptr;
    float* acc = nullptr;
  };
  struct Scratch {
    std::vector<float> q, keys, values, kernel, state;
    std::vector<int32_t> first, last;
    std::vector<std::byte> exact;
  };
  struct Job {
    const StepView& step;
    uint32_t layer;
    const AttentionShape& shape;
    Activation qkv;
    const KvPages& kv;
    const KvWriter& writer;
    Activation out;
    int64_t group;   // query heads per KV head
    int64_t stride;  // of values and accumulators
  };

  void plan(const Job& job);
  void share_partitions(const Job& job);
  void run_tile(const Job& job, const Tile& tile, Scratch& scratch) const;
  void run_part(const Job& job, const Tile& tile, uint32_t partition, Scratch& scratch);
  void merge_parts(const Job& job, const Tile& tile, Scratch& scratch) const;
  void gather_queries(const Job& job, const Tile& tile, Scratch& scratch) const;
  void load_partition(const Job& job, const Tile& tile, uint32_t partition, Scratch& scratch) const;
  void attend(const Job& job, const Tile& tile, uint32_t partition, Scratch& scratch,
              const State& state) const;
  void write_out(const Job& job, const Tile& tile, const State& state) const;
  [[nodiscard]] static int64_t rows(const Job& job, const Tile& tile) {
    return int64_t{tile.end - tile.begin} * job.group;
  }
  [[nodiscard]] State state_at(float* memory, int64_t rows) const {
    return {memory, memory + rows, memory + 2 * rows};
  }
  [[nodiscard]] static State empty_state(const Job& job, int64_t rows, std::vector<float>& memory);

  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
  std::vector<Tile> tiles_;
  std::vector<Item> items_;
  std::vector<Scratch> scratch_;  // per thread
  std::vector<float> parts_;      // states of shared partitions
};

}  // namespace tandem::engine
