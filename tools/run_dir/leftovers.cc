#include "tools/run_dir/leftovers.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "tools/run_dir/run_dir.h"

namespace tandem::rundir {
namespace {

constexpr Duration kAfterKill = std::chrono::seconds(5);

// Whether the process is a role that was started with this run directory. A zombie has no command
// line any more.
bool serves(pid_t pid, const std::string& run_dir) {
  if (pid <= 1) return false;
  std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string words{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  words.insert(words.begin(), '\0');
  std::string wanted("\0--run-dir\0", 11);
  wanted += run_dir;
  wanted += '\0';
  return words.find(wanted) != std::string::npos;
}

std::string list(const std::vector<Leftover>& roles) {
  std::string text;
  for (const Leftover& role : roles) {
    text += (text.empty() ? "" : ", ") + role.name + " (process " + std::to_string(role.pid) + ")";
  }
  return text;
}

void signal_all(const std::vector<Leftover>& roles, int signal) {
  for (const Leftover& role : roles) ::kill(role.pid, signal);
}

// What is left after at most `limit`.
std::vector<Leftover> wait_until_gone(const std::string& run_dir, Duration limit,
                                      const Clock& clock) {
  const TimePoint deadline = clock.now() + limit;
  while (true) {
    std::vector<Leftover> left = leftovers(run_dir);
    if (left.empty() || clock.now() > deadline) return left;
    ::usleep(50'000);
  }
}

}  // namespace

std::vector<Leftover> leftovers(const std::string& run_dir) {
  std::vector<Leftover> out;
  const std::optional<SupervisorState> state = read_state(run_dir);
  if (!state) return out;
  for (const ProcessState& process : state->processes) {
    // The supervisor may have died between a start and its note of it.
    const std::optional<RoleEndpoints> published = read_endpoints(run_dir, process.name);
    for (const pid_t pid : {process.pid, published ? published->pid : pid_t{0}}) {
      if (!serves(pid, run_dir)) continue;
      if (out.empty() || out.back().pid != pid) out.push_back({process.name, pid});
    }
  }
  return out;
}

Status stop_leftovers(const std::string& run_dir, const Clock& clock,
                      const std::function<void(const std::string&)>& progress) {
  std::vector<Leftover> left = leftovers(run_dir);
  if (left.empty()) return {};
  progress("the supervisor of " + run_dir + " died and left these running; stopping " + list(left));
  signal_all(left, SIGTERM);
  const std::optional<SupervisorState> state = read_state(run_dir);
  const Duration limit = std::chrono::seconds(state ? state->stop_seconds : 5);
  left = wait_until_gone(run_dir, limit, clock);
  if (!left.empty()) {
    progress("not gone in time; killing " + list(left));
    signal_all(left, SIGKILL);
    left = wait_until_gone(run_dir, kAfterKill, clock);
  }
  if (left.empty()) return {};
  return fail(ErrorCode::kUnavailable, "cannot stop " + list(left));
}

}  // namespace tandem::rundir
