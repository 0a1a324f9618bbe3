#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/node/kv_store.h"
#include "common/node/page_mover.h"
#include "common/node/step_executor.h"
#include "common/node/task.h"
#include "common/proto/control.pb.h"
#include "common/transport/transport.h"

namespace tandem::node {

// What a process (or a simulation) drives: the state machine of a prefill or a decode node. Control
// thread only.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // From the router, after the handshake.
  virtual void on_message(const control::ToNode& message) = 0;
  virtual void on_step(StepResult result) = 0;
  // Of moves that this node submitted to its PageMover.
  virtual void on_moved(MoveResult result) = 0;
  // Final events of the transfers that this node opened.
  virtual void on_received(TransferId id, const std::string& commit,
                           const transport::ReceiveStats& stats) = 0;
  virtual void on_receive_failed(TransferId id, const Error& error) = 0;
  virtual void on_sent(TransferId id, const transport::SendStats& stats) = 0;
  virtual void on_send_failed(TransferId id, const Error& error) = 0;
  // The router is gone: it will not miss what was open, so everything is dropped without a word.
  virtual void on_disconnected() = 0;
  // Sweeps every deadline and lease and starts a step if there is work and none is running.
  virtual void tick() = 0;
  // Finishes what it has, refuses what comes.
  virtual void drain() = 0;

  // Holds no request and no transfer.
  [[nodiscard]] virtual bool idle() const = 0;
  [[nodiscard]] virtual control::Heartbeat heartbeat() const = 0;
};

}  // namespace tandem::node
