#include "tools/run_dir/leftovers.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
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

struct Life {
  char state = 'X';  // as proc(5) spells it
  uint64_t started = 0;
};

// Empty when there is no such process.
std::optional<Life> life_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Life life;
  fields >> life.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> life.started;
  return fields ? std::optional(life) : std::nullopt;
}

// A process on its way out has no command line any more, but still its ports and memory. It is
// gone when it is a zombie without other threads, or when its number is free or another's.
bool gone(const Leftover& role) {
  const std::optional<Life> life = life_of(role.pid);
  if (!life || life->started != role.started) return true;
  if (life->state != 'Z' && life->state != 'X') return false;
  std::error_code error;
  const fs::path threads = "/proc/" + std::to_string(role.pid) + "/task";
  const auto count = std::distance(fs::directory_iterator(threads, error), {});
  return error || count <= 1;
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

// Leaves those in `roles` that are still there after `limit`.
void wait_until_gone(std::vector<Leftover>& roles, Duration limit, const Clock& clock) {
  const TimePoint deadline = clock.now() + limit;
  while (true) {
    std::erase_if(roles, gone);
    if (roles.empty() || clock.now() > deadline) return;
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
      const std::optional<Life> life = life_of(pid);
      if (!life) continue;
      out.push_back({.name = process.name,
                     .pid = pid,
                     .config = argument_of(pid, "--config"),
                     .started = life->started});
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
  wait_until_gone(left, limit, clock);
  if (!left.empty()) {
    progress("not gone in time; killing " + list(left));
    signal_all(left, SIGKILL);
    wait_until_gone(left, kAfterKill, clock);
  }
  if (left.empty()) return {};
  return fail(ErrorCode::kUnavailable, "cannot stop " + list(left));
}

}  // namespace tandem::rundir
