#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace tandem::rundir {

// A role whose supervisor died without stopping it (SIGKILL, out of memory). The kernel sends such
// a role SIGTERM, so that it drains, but nobody is left to end it if it does not.
struct Leftover {
  std::string name;
  pid_t pid = 0;
  std::string config;    // the cluster file, as its command line has it
  uint64_t started = 0;  // as the system counts it: no later process of this number has the same
};

// Processes that an earlier `tandem up` of this run directory started and that still run, by its
// supervisor.json and what the roles published. Numbers that the system has given to other
// processes since are told apart by their command line. Ask only while nobody holds the directory.
[[nodiscard]] std::vector<Leftover> leftovers(const std::string& run_dir);

// kUnavailable when some of them are of another cluster file.
[[nodiscard]] Status check_leftovers(const std::string& run_dir, const std::string& config_path);

// Ends all of them: SIGTERM, and SIGKILL after the time that the earlier supervisor would have
// given them. kUnavailable when one is still there afterwards.
[[nodiscard]] Status stop_leftovers(const std::string& run_dir, const Clock& clock,
                                    const std::function<void(const std::string&)>& progress);

}  // namespace tandem::rundir
