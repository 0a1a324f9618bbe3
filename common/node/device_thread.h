#pragma once

#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/node/step_executor.h"

namespace tandem::node {

// The thread that owns the engine: it builds it, runs every step, and destroys it. start() and
// stop() belong to one owner thread; submit() may come from any.
class DeviceThread final : public StepExecutor {
 public:
  // Makes the step function on the device thread, where all later steps run.
  using Factory = std::function<Result<StepFunction>()>;
  // Called on the device thread with every result; posts to its owner and returns.
  using Sink = std::function<void(StepResult)>;

  DeviceThread(const Clock& clock, Sink sink);
  ~DeviceThread() override;  // stops

  // Returns when the factory has run; its error is returned and the thread has ended then.
  [[nodiscard]] Status start(Factory factory);
  // Finishes the running step, drops what is queued, joins. Idempotent.
  void stop();

  [[nodiscard]] bool submit(StepJob job) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::node
