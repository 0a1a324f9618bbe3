#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/node/kv_store.h"
#include "common/node/scheduler.h"
#include "common/node/step_executor.h"
#include "common/node/task.h"
#include "common/obs/metrics.h"
#include "common/proto/control.pb.h"
#include "common/transport/transport.h"

namespace tandem::prefill {

struct PrefillOptions {
  node::TaskLimits limits;
  uint32_t max_batch_tokens = 2048;  // most rows of one step
  Duration step_target =
      std::chrono::milliseconds(400);  // a step gets fewer when it would take longer
  uint32_t chunk_tokens = 512;         // rows of one prompt in one step
  uint32_t max_sequences = 64;    // prompts in work at once, those still being sent not counted
  uint32_t queue_capacity = 256;  // prompts that wait for their first step
  Duration default_deadline = std::chrono::seconds(30);  // when the router names none
};

// Everything a prefill node decides: which prompts join the next step, what is pushed where, and
// when blocks may be reused. A state machine over messages, transport events, step results and
// tick(); it owns no thread and no socket. Belongs to the control thread.
//
// A prompt is queued -> computing (chunk by chunk, each layer's finished pages posted from the
// device thread) -> sending -> gone. Its blocks stay pinned until both its step and its transfer
// have ended, whatever else happens: the device may still write them, the transport may still read
// them.
class PrefillScheduler final : public node::Scheduler {
 public:
  struct Deps {
    const Clock& clock;
    node::KvStore& kv;
    transport::Transport& transport;
    node::StepExecutor& executor;
    MetricsRegistry& metrics;
    std::function<void(control::ToRouter)> send;
  };

  PrefillScheduler(const Deps& deps, const PrefillOptions& options);
  ~PrefillScheduler() override;

  void on_message(const control::ToNode& message) override;
  void on_step(node::StepResult result) override;
  void on_moved(node::MoveResult) override {}
  void on_received(TransferId, const std::string&, const transport::ReceiveStats&) override {}
  void on_receive_failed(TransferId, const Error&) override {}
  void on_sent(TransferId id, const transport::SendStats& stats) override;
  void on_send_failed(TransferId id, const Error& error) override;
  void on_disconnected() override;
  void tick() override;
  void drain() override;
  [[nodiscard]] bool idle() const override;
  [[nodiscard]] control::Heartbeat heartbeat() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::prefill
