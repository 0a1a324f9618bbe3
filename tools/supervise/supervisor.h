#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

// How things stand when everything of this box has started.
struct Ready {
  std::string url;                   // of the API; empty without a router
  std::string control;               // host:port that nodes dial; empty without a router
  bool serves = true;                // the API can answer; false: no decode node is registered
  std::vector<std::string> waiting;  // nodes whose router, elsewhere, is not there yet, and why
};

// Starts the router, then the nodes of a cluster file, waits until all are ready, restarts what
// dies (with growing pauses), and stops them in order: router first, so that it can finish what
// runs. A node whose router is not of this file has started when it has registered there, or when
// the router could not be reached for a while: it goes on trying.
//
// run() blocks its thread until SIGINT, SIGTERM or, on a terminal, SIGHUP; that thread forks all
// children and must live as long as they do: the kernel sends them SIGTERM when it dies. These
// signals and SIGCHLD must be blocked in every thread (block_signals() before any is started). A
// second SIGINT or SIGTERM cuts drains short, a third one kills what is left.
class Supervisor {
 public:
  struct Callbacks {
    std::function<void(const std::string& line)> progress;  // for people
    std::function<void(const Ready&)> ready;                // once
  };
  Supervisor(const ClusterConfig& config, const Environment& environment, SupervisorOptions options,
             Callbacks callbacks, const Clock& clock);
  ~Supervisor();

  // The signal that came before everything was ready, or 0 when it came afterwards. Errors: kConfig
  // when a role says that it can never start like this, kUnavailable when one does not come up.
  [[nodiscard]] Result<int> run();

  static void block_signals();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::supervise
