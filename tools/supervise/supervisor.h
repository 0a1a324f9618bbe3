#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/config/environment.h"

namespace tandem::supervise {

struct SupervisorOptions {
  std::string config_path;
  std::string run_dir;
  std::string program_dir;  // where tandem-router and the others lie
  Duration ready_timeout = std::chrono::minutes(5);
};

// Starts the router, then the nodes of a cluster file, waits until all are ready, restarts what
// dies (with growing pauses), and stops them in order: router first, so that it can finish what
// runs.
//
// run() blocks its thread until SIGINT or SIGTERM; that thread forks all children and must live as
// long as they do. SIGINT, SIGTERM and SIGCHLD must be blocked in every thread (block_signals()
// before any is started). A second SIGINT kills at once.
class Supervisor {
 public:
  struct Callbacks {
    std::function<void(const std::string& line)> progress;  // for people
    std::function<void(const std::string& url)> ready;      // once; url is empty without a router
  };
  Supervisor(const ClusterConfig& config, const Environment& environment, SupervisorOptions options,
             Callbacks callbacks, const Clock& clock);
  ~Supervisor();

  // Errors: kConfig when a role refuses its configuration, kUnavailable when one does not come up.
  [[nodiscard]] Status run();

  static void block_signals();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::supervise
