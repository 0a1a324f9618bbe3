#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "router/dispatch/route_policy.h"
#include "router/dispatch/types.h"

namespace tandem::control {
class Hello;
class ToNode;
class ToRouter;
class Welcome;
}  // namespace tandem::control

namespace tandem::router {

// The owner of cluster state: which nodes there are, which request is where, and what to do when
// something breaks. A state machine over messages, a clock and tick(); it does no I/O. Everything
// on one thread, the cluster thread. Callbacks are made from inside its functions and must not call
// back.
class Dispatcher {
 public:
  struct Deps {
    const Clock& clock;
    const RoutePolicy& policy;
    DispatchObserver& observer;
    // Hands a message to a connection. A connection that cannot take it is closed by the session
    // layer, which then reports it through on_node_disconnected.
    std::function<void(NodeHandle, const control::ToNode&)> send;
    // Closes a connection whose node is considered dead; no on_node_disconnected is needed after
    // it.
    std::function<void(NodeHandle)> close;
  };

  Dispatcher(Deps deps, DispatchOptions options);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // All choices of one HTTP request, or none of them: the queue takes all or each ends in
  // kQueueFull.
  void submit(std::vector<Submission> choices, std::shared_ptr<AnswerSink> sink);
  // Frees everything of a request in whatever phase it is; no update follows. Unknown ids are fine.
  void cancel(RequestId id);

  // The client has all it asked for (a stop string): the same, but counted as finished.
  void finish_early(RequestId id);

  // After the session layer has authenticated the Hello. The returned Welcome says whether the node
  // is admitted; if not, the caller sends it and closes, and the handle means nothing to the
  // dispatcher.
  [[nodiscard]] control::Welcome on_node_connected(NodeHandle node, const control::Hello& hello);
  void on_message(NodeHandle node, const control::ToRouter& message);
  void on_node_disconnected(NodeHandle node);

  // Sweeps every deadline, lease and heartbeat. To be called every few milliseconds, work or no
  // work.
  void tick();

  // Refuses new submissions from now on with kUnavailable; what was admitted runs on.
  void drain();
  // Ends every open request with kUnavailable: the router ends.
  void cut();
  // Requests that have not ended.
  [[nodiscard]] size_t open_requests() const;

  [[nodiscard]] std::shared_ptr<const ClusterSnapshot> snapshot() const;
  [[nodiscard]] const DispatchCounters& counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::router
