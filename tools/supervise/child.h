#pragma once

#include <sys/types.h>

#include <cstdint>
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

// Bytes of a log that is there already: where the words of a process that starts now begin.
[[nodiscard]] uint64_t log_size(const std::string& path);

// Why a role ended: from its last line of the form "PROGRAM: …", with which programs say why they
// end, or else the last `lines` lines of what the file holds from `from` on. Empty if it cannot be
// read.
[[nodiscard]] std::string last_words(const std::string& path, uint64_t from,
                                     const std::string& program, size_t lines);

}  // namespace tandem::supervise
