#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/node/scheduler.h"
#include "common/node/step_executor.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/proto/control.pb.h"

namespace tandem::node {

class CpuTail;

// What a role's scheduler is made from, once everything else of the process stands.
struct SchedulerDeps {
  const Clock& clock;
  KvStore& kv;
  transport::Transport& transport;
  StepExecutor& executor;
  CpuTail* cpu_tail = nullptr;  // null: none
  MetricsRegistry& metrics;
  TaskLimits limits;
  std::function<void(control::ToRouter)> send;
};

struct NodeSpec {
  control::Role role = control::ROLE_UNSPECIFIED;
  std::string role_name;  // "prefill", "decode": metrics, logs, run directory
  const ClusterConfig& config;
  const NodeSettings& settings;
  uint32_t tails = 0;          // open pages, if the KV format needs them
  bool cpu_tail = false;       // with a CPU engine beside the device
  std::string run_dir;         // where to publish endpoints; empty: nowhere
  std::string cache_dir = {};  // where to keep what was found out about a card; empty: nowhere
  std::string version;
  std::function<std::unique_ptr<Scheduler>(const SchedulerDeps&)> make_scheduler;
  // Puts something between scheduler and engine, such as a fault in a test; null: nothing.
  std::function<StepFunction(StepFunction)> wrap_step = {};
  // The same between transport and node.
  std::function<std::unique_ptr<transport::TransportEvents>(transport::TransportEvents&)>
      wrap_events = {};
};

// A node's process: control thread, device thread, transport, metrics endpoint and the connection
// to the router, with a scheduler in the middle.
//
//   start()  loads the model, tests the KV path, listens, dials the router
//   drain()  refuses new work; idle() tells when what was running has ended
//   ~        stops every thread; what still runs is dropped
//
// Owned by main()'s thread. Its endpoint serves /metrics, /health/live (the scheduler's tick
// advances) and /health/ready (admitted by a router, self-test passed, not draining).
class NodeProcess {
 public:
  NodeProcess(const NodeSpec& spec, const Clock& clock, const Logger& log,
              MetricsRegistry& metrics);
  ~NodeProcess();
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  [[nodiscard]] Status start();
  void drain();
  [[nodiscard]] bool idle() const;
  // The device is gone: nothing can be computed any more, and every later answer would be an error.
  // End the process at once; the router then runs its requests elsewhere.
  [[nodiscard]] bool failed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::node
