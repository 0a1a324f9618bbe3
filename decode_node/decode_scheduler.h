#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/node/kv_store.h"
#include "common/node/step_executor.h"
#include "common/node/task.h"
#include "common/proto/control.pb.h"
#include "common/transport/transport.h"

namespace tandem::decode {

class DecodeMetrics;

struct DecodeOptions {
  node::TaskLimits limits;
  uint32_t max_batch_tokens = 2048;  // rows of one step
  uint32_t max_sequences = 64;       // generating at once; further ones wait in the decode queue
  uint32_t queue_capacity = 256;     // requests held beyond max_sequences, in whatever phase
  uint32_t chunk_tokens = 256;       // rows of local prefill that may join a decode step
  Duration queue_ageing = std::chrono::seconds(1);  // see batch_policy.h
  Duration default_lease = std::chrono::seconds(30);  // when the router names none
  Duration max_lease = std::chrono::hours(1);
};

// Everything a decode node decides: who may write which blocks until when, which requests join the
// next step, who gives up blocks when they run out. A state machine over messages, transport events,
// step results and tick(); it owns no thread and no socket. Belongs to the control thread.
//
// A request is reserved (a prefill node writes its blocks; a lease) or waiting (to be prefilled here) ->
// prefilling -> ready (in the decode queue or generating) -> gone. Preemption takes a request that
// holds blocks back to waiting; it keeps its tokens. Blocks return to the pool when no step reads or
// writes them and their transfer is closed, which is synchronous: after Transport::close_receive()
// nobody writes any more.
class DecodeScheduler {
 public:
  struct Deps {
    const Clock& clock;
    node::KvStore& kv;
    transport::Transport& transport;
    node::StepExecutor& executor;
    DecodeMetrics& metrics;
    std::function<void(control::ToRouter)> send;
  };

  DecodeScheduler(Deps deps, const DecodeOptions& options);
  ~DecodeScheduler();

  // Handshake messages are not for the scheduler and are ignored.
  void on_message(const control::ToNode& message);
  void on_received(TransferId id, const std::string& commit, const transport::ReceiveStats& stats);
  void on_receive_failed(TransferId id, const Error& error);
  void on_step(node::StepResult result);
  // The router is gone: it will not miss what was open, so everything is dropped without a word.
  void on_disconnected();
  // Sweeps every lease and starts a step if there is work and none is running.
  void tick();
  // Finishes what it has, refuses what comes.
  void drain();

  [[nodiscard]] bool idle() const;
  [[nodiscard]] control::Heartbeat heartbeat() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::decode
