#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace tandem {

// A child process whose standard input and output are pipes of ours. Its owner waits for it.
struct PipedChild {
  pid_t pid = 0;
  Fd in;   // what we write is its input; closing it ends that
  Fd out;  // its output
};

// `words`: the program, looked for in PATH unless it has a slash, and its arguments. `environment`:
// NAME=VALUE, in place of what this process hands on under that name. kIo when it cannot be
// started.
[[nodiscard]] Result<PipedChild> start_piped_child(
    std::vector<std::string> words, const std::vector<std::string>& environment = {});

}  // namespace tandem
