#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "common/node/step_executor.h"
#include "tests/sim/cluster_world.h"

namespace tandem::sim {

// A device that computes in simulated time: the forward pass (with its layer hook) happens
// somewhere within the step's duration, so that messages and events fall before, into and after it.
class SimExecutor final : public node::StepExecutor {
 public:
  using Cost = std::function<Duration(const node::StepJob&)>;

  SimExecutor(World& world, node::StepFunction step, Cost cost)
      : world_(world), step_(std::move(step)), cost_(std::move(cost)) {}

  // A crashed process: what it had open never comes back.
  ~SimExecutor() override { *alive_ = false; }

  std::function<void(node::StepResult)> sink;

  [[nodiscard]] bool submit(node::StepJob job) override {
    if (open_) return false;
    open_ = true;
    const Duration cost = cost_(job);
    const Duration at = world_.draw(Duration{0}, cost);
    const TimePoint started = world_.now();
    world_.after(
        at, [this, alive = alive_, job = std::move(job), started, rest = cost - at]() mutable {
          if (!*alive) return;
          node::StepResult result{.id = job.id, .outputs = {}, .started = started, .finished = {}};
          result.outputs = step_(job.sequences, job.hook);
          world_.after(rest, [this, alive, result = std::move(result)]() mutable {
            if (!*alive) return;
            open_ = false;
            result.finished = world_.now();
            sink(std::move(result));
          });
        });
    return true;
  }

 private:
  World& world_;
  node::StepFunction step_;
  Cost cost_;
  bool open_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace tandem::sim
