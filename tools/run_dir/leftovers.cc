#include "tools/run_dir/leftovers.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "tools/run_dir/run_dir.h"

namespace tandem::rundir {
namespace {

namespace fs = std::filesystem;

constexpr Duration kAfterKill = std::chrono::seconds(5);

// What stands behind `flag` on the command line of a process; empty: nothing. A zombie has no
// command line any more.
std::string argument_of(pid_t pid, const char* flag) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string word;
  while (std::getline(in, word, '\0')) {
    if (word == flag && std::getline(in, word, '\0')) return word;
  }
  return {};
}

// Whether the process is a role that was started with this run directory.
bool serves(pid_t pid, const std::string& run_dir) {
  return pid > 1 && argument_of(pid, "--run-dir") == run_dir;
}

// A role's path counts from where it was started.
bool runs_file(const Leftover& role, const std::string& config_path) {
  const fs::path folder = "/proc/" + std::to_string(role.pid) + "/cwd";
  std::error_code error;
  if (fs::equivalent(folder / role.config, config_path, error)) return true;
  if (!error) return false;
  const fs::path there = fs::read_symlink(folder, error) / role.config;  // the file has gone since
  return there.lexically_normal() == fs::absolute(config_path, error).lexically_normal();
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
      if (!out.empty() && out.back().pid == pid) continue;
      out.push_back({.name = process.name, .pid = pid, .config = argument_of(pid, "--config")});
    }
  }
  return out;
}

Status check_leftovers(const std::string& run_dir, const std::string& config_path) {
  std::vector<Leftover> others = leftovers(run_dir);
  std::erase_if(others, [&](const Leftover& role) { return runs_file(role, config_path); });
  if (others.empty()) return {};
  return fail(ErrorCode::kUnavailable,
              "a cluster of " + others.front().config + " still runs from " + run_dir +
                  ", whose supervisor died: " + list(others) +
                  "; stop it with `tandem down`, or choose another folder with --run-dir");
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
