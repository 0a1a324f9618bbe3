#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/config/environment.h"

namespace tandem::rundir {

// $XDG_RUNTIME_DIR/tandem where there is such a folder, else ./run.
[[nodiscard]] std::string default_run_dir(const Environment& environment);

// The absolute path of what --run-dir says, by which processes know each other; the default where
// it says nothing.
[[nodiscard]] std::string resolve_run_dir(const std::string& flag, const Environment& environment);

// Held by `tandem up` as long as it lives; the kernel lets go of it however the process ends.
class RunDirLock {
 public:
  // Creates the folder. kUnavailable, naming the holder, when another supervisor has it.
  [[nodiscard]] static Result<RunDirLock> acquire(const std::string& run_dir);
  // Writes this process's id into the lock file: again after a fork.
  [[nodiscard]] Status write_pid() const;

 private:
  explicit RunDirLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Process id of the supervisor that holds the folder; empty when none does.
[[nodiscard]] std::optional<pid_t> lock_holder(const std::string& run_dir);

// The same when it runs that cluster file.
[[nodiscard]] std::optional<pid_t> supervisor_of(const std::string& run_dir,
                                                 const std::string& config_path);

// Absolute path of the cluster file that this holder of the folder runs, as it says itself where
// its working directory cannot be read; empty before it has written its state.
[[nodiscard]] std::string config_path_of(const std::string& run_dir, pid_t holder);

// What a role published (common/base/run_file.h).
struct RoleEndpoints {
  std::string role;
  std::string name;
  pid_t pid = 0;
  std::map<std::string, std::string> endpoints;
};
// Empty when the file is not there (yet) or is not one of these.
[[nodiscard]] std::optional<RoleEndpoints> read_endpoints(const std::string& run_dir,
                                                          const std::string& name);

// State of the supervised processes as `tandem up` last wrote it: supervisor.json.
struct ProcessState {
  std::string name;
  std::string role;  // router, prefill, decode
  pid_t pid = 0;
  std::string state;
  uint32_t restarts = 0;
};
struct SupervisorState {
  std::string config;
  std::string url;           // of the API; empty without a router
  int64_t stop_seconds = 0;  // longest time from SIGTERM to the supervisor's end
  std::vector<ProcessState> processes;

  [[nodiscard]] bool has_router() const;
};
[[nodiscard]] Status write_state(const std::string& run_dir, const SupervisorState& state);
[[nodiscard]] std::optional<SupervisorState> read_state(const std::string& run_dir);

}  // namespace tandem::rundir
