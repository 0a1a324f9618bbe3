#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/node/kv_store.h"
#include "common/node/step_executor.h"
#include "common/node/task.h"
#include "common/proto/control.pb.h"
#include "common/transport/transport.h"

namespace tandem::prefill {

class PrefillMetrics;

struct PrefillOptions {
  node::TaskLimits limits;
  uint32_t max_batch_tokens = 2048;  // rows of one step
  uint32_t chunk_tokens = 512;       // rows of one prompt in one step
  uint32_t max_sequences = 64;       // prompts in work at once, those still being sent not counted
  uint32_t queue_capacity = 256;     // prompts that wait for their first step
  Duration default_deadline = std::chrono::seconds(30);  // when the router names none
};

// Everything a prefill node decides: which prompts join the next step, what is pushed where, and when
// blocks may be reused. A state machine over messages, transport events, step results and tick();
// it owns no thread and no socket. Belongs to the control thread.
//
// A prompt is queued -> computing (chunk by chunk, each layer's finished pages posted from the device
// thread) -> sending -> gone. Its blocks stay pinned until both its step and its transfer have ended,
// whatever else happens: the device may still write them, the transport may still read them.
class PrefillScheduler {
 public:
  struct Deps {
    const Clock& clock;
    node::KvStore& kv;
    transport::Transport& transport;
    node::StepExecutor& executor;
    PrefillMetrics& metrics;
    std::function<void(control::ToRouter)> send;
  };

  PrefillScheduler(Deps deps, const PrefillOptions& options);
  ~PrefillScheduler();

  // Handshake messages are not for the scheduler and are ignored.
  void on_message(const control::ToNode& message);
  void on_sent(TransferId id, const transport::SendStats& stats);
  void on_send_failed(TransferId id, const Error& error);
  void on_step(node::StepResult result);
  // The router is gone: it will not miss what was open, so everything is dropped without a word.
  void on_disconnected();
  // Sweeps every deadline and starts a step if there is work and none is running.
  void tick();
  // Finishes what it has, refuses what comes.
  void drain();

  // Nothing queued, computing or being sent.
  [[nodiscard]] bool idle() const;
  [[nodiscard]] control::Heartbeat heartbeat() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::prefill
