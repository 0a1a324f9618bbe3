#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/node/device_thread.h"
#include "common/node/kv_store.h"
#include "common/node/mover_thread.h"
#include "common/node/node_model.h"
#include "common/obs/log.h"

namespace tandem::node {

// When requests leave the device's KV pool and come back; bytes of that pool.
struct TailThresholds {
  uint64_t free_below = 0;
  uint64_t return_above = 0;
};
// Fills in what the file leaves open (0B) for a pool of that size. kConfig when the numbers make no
// sense for it. Pure.
[[nodiscard]] Result<TailThresholds> tail_thresholds(const CpuTailSettings& settings,
                                                     uint64_t pool_bytes);

// The pool of a tail beside a node's, and when it is used.
struct TailPlan {
  kv::KvLayout layout;
  uint32_t blocks = 0;
  TailThresholds thresholds;
};
// kConfig, with the key at fault, when it holds too little or the numbers make no sense for the
// node's pool, whose size must be known. Pure.
[[nodiscard]] Result<TailPlan> plan_tail(const CpuTailSettings& settings, const NodeModel& model);

// What a decode node has beside its device to go on with long requests: a CPU engine on a device
// thread of its own, a KV pool in host memory, and the thread that moves pages between the pools.
// Made on main()'s thread; the store belongs to the control thread from then on.
class CpuTail {
 public:
  struct Deps {
    const ClusterConfig& config;
    const NodeSettings& settings;
    const NodeModel& model;  // of the device's engine
    uint32_t tails = 0;      // open pages of the host pool, if its format needs them
    uint32_t threads = 0;    // that compute
    kv::PageMemory& device;  // the device's pool; outlives the moves
    const Clock& clock;
    const Logger& log;
    // Called on the tail's own threads; post and return.
    std::function<void(StepResult)> on_step;
    std::function<void(MoveResult)> on_moved;
  };
  // Loads the weights a second time, for the CPU. Errors name the key at fault.
  [[nodiscard]] static Result<std::unique_ptr<CpuTail>> create(Deps deps);

  // Ends running step and move: afterwards nobody touches either pool. Idempotent.
  void stop();

  [[nodiscard]] KvStore& kv() { return *kv_; }
  [[nodiscard]] StepExecutor& executor() { return device_; }
  [[nodiscard]] PageMover& mover() { return mover_; }
  [[nodiscard]] TailThresholds thresholds() const { return plan_.thresholds; }

 private:
  explicit CpuTail(Deps deps);
  [[nodiscard]] Status load();
  [[nodiscard]] Result<StepFunction> make_engine();

  const Deps deps_;
  TailPlan plan_;
  std::unique_ptr<kv::PageMemory> memory_;  // until the store has it
  std::unique_ptr<KvStore> kv_;
  DeviceThread device_;
  MoverThread mover_;
};

}  // namespace tandem::node
