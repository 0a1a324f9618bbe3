#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/obs/log.h"
#include "router/dispatch/types.h"

namespace tandem {
class IoThread;
class MetricsRegistry;
}  // namespace tandem

namespace tandem::router {

class RouterMetrics;
class StatusBoard;

// The owner of all cluster state: the control port, the dispatcher behind it, and the way in for
// HTTP threads. Lives on the loop of `io`, the cluster thread; where HTTP runs on that loop as
// well, the ways in are plain calls. create() -> start() -> (any thread: submit, cancel, …) ->
// drain() -> the loop's end -> stop().
class ClusterLink {
 public:
  struct Deps {
    IoThread& io;
    const Clock& clock;
    Logger log;
    MetricsRegistry& registry;
    RouterMetrics& metrics;
    StatusBoard& board;
  };
  // Listens on the control port. Errors: kIo, kConfig. The dependencies outlive the link.
  [[nodiscard]] static Result<std::unique_ptr<ClusterLink>> create(const ControlSettings& control,
                                                                   std::string shared_key,
                                                                   DispatchOptions options,
                                                                   Deps deps);
  ~ClusterLink();  // stop()

  // Before the loop starts.
  void start();
  [[nodiscard]] uint16_t control_port() const;

  // Any thread; see Dispatcher. Updates come on the cluster thread, within submit() at the
  // earliest; a sink must not call back from within one.
  [[nodiscard]] RequestId new_id();
  void submit(std::vector<Submission> choices, std::shared_ptr<AnswerSink> sink);
  void cancel(std::vector<RequestId> ids);
  void finish_early(RequestId id);

  // At most 100 ms old. Any thread.
  [[nodiscard]] std::shared_ptr<const ClusterSnapshot> snapshot() const;
  // The cluster thread has run lately: live.
  [[nodiscard]] bool live() const;

  // Refuses new requests; waits for at most `timeout` until none is open, and ends with an error
  // what is open then, or once `hurry` holds (asked every few milliseconds). True if nothing was
  // cut off. Not from the cluster thread.
  bool drain(Duration timeout, const std::function<bool()>& hurry = {});
  void stop();  // after the loop's end

 private:
  struct Impl;
  explicit ClusterLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::router
