#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/environment.h"

namespace tandem::supervise {

struct ChildSpec {
  std::string program;                 // path
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;             // all of it
  std::string log_path;                // stdout and stderr, appended
};

// Starts a process in its own group (Ctrl-C at the terminal is the supervisor's to pass on) that
// the kernel ends with SIGTERM when the calling thread's process dies. Safe with threads running.
[[nodiscard]] Result<pid_t> spawn(const ChildSpec& spec);

// "exit code 2", "signal 9 (Killed)".
[[nodiscard]] std::string describe_exit(int wait_status);

// The last `lines` lines of a file, empty if it cannot be read.
[[nodiscard]] std::string tail_of(const std::string& path, size_t lines);

}  // namespace tandem::supervise
