#pragma once

#include <sys/types.h>

#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace tandem::supervise {

// Where the progress of a supervisor goes: the terminal, or, until everything is ready, a pipe to
// the command that started it and waits (follow()), and from then on the supervisor's own log.
class Voice {
 public:
  static Voice to_terminal() { return Voice(Fd()); }
  static Voice to_command(Fd pipe) { return Voice(std::move(pipe)); }

  void say(const std::string& line) const;
  // Lets the command end with this exit code. Nothing happens when it has been let go.
  void release(int exit_code);

 private:
  explicit Voice(Fd pipe) : pipe_(std::move(pipe)) {}
  Fd pipe_;  // none: standard error
};

// Reads SIGINT, SIGTERM and (on a terminal) SIGHUP, which must be blocked in every thread.
[[nodiscard]] Result<Fd> end_signals();

// The command's end: prints what the supervisor `child` says until it releases the command, and
// returns the exit code for it. Those of `signals` (end_signals()) are passed on; then it waits
// until the supervisor has stopped its roles and ended, and returns 128 + the signal.
[[nodiscard]] int follow(Fd pipe, Fd signals, pid_t child);

// Exit code of a command that a signal ended.
[[nodiscard]] constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace tandem::supervise
