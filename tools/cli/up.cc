#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "common/base/fd.h"
#include "common/config/config.h"
#include "common/preflight/judge.h"
#include "tools/cli/command.h"
#include "tools/number_flag.h"
#include "tools/run_dir/leftovers.h"
#include "tools/run_dir/run_dir.h"
#include "tools/supervise/detach.h"
#include "tools/supervise/supervisor.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct UpFlags {
  std::string config;
  std::string run_dir;
  bool detach = false;
  double timeout_seconds = 300;
};

std::string program_dir() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : self.parent_path().string();
}

void say_on_terminal(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

std::string announcement(const supervise::Ready& ready, const std::string& run_dir) {
  std::string text;
  if (ready.url.empty()) {
    text = ready.waiting.empty() ? "ready" : "started";
  } else {
    text = (ready.serves ? "ready: API " : "listening: API ") + ready.url + "/v1, status page " +
           ready.url + "/";
  }
  text += ready.url.empty() ? "; logs in " + run_dir : ", logs in " + run_dir;
  if (!ready.serves) {
    text += "\nno decode node is registered: the API answers 503 until one is; nodes dial " +
            ready.control;
  }
  if (ready.waiting.empty()) return text;
  text += "\nnot registered yet; these nodes keep running and register when their router answers:";
  for (const std::string& node : ready.waiting) text += "\n  " + node;
  return text;
}

// The exit code: that of the signal if one came before everything was ready.
Result<int> supervise_cluster(const UpFlags& flags, const ClusterConfig& config,
                              const CommandContext& context, supervise::Voice& voice) {
  supervise::SupervisorOptions options;
  options.config_path = flags.config;
  options.run_dir = flags.run_dir;
  options.program_dir = program_dir();
  options.ready_timeout = from_seconds(flags.timeout_seconds);
  supervise::Supervisor supervisor(config, context.environment, options,
                                   {.progress = [&](const std::string& line) { voice.say(line); },
                                    .ready =
                                        [&](const supervise::Ready& ready) {
                                          voice.say(announcement(ready, flags.run_dir));
                                          voice.release(kExitOk);
                                        }},
                                   context.clock);
  TANDEM_ASSIGN(const int signal, supervisor.run());
  if (signal == 0) return kExitOk;
  voice.say("interrupted before everything was ready; nothing is left running");
  return supervise::exit_code_of_signal(signal);
}

void redirect(const char* path, int flags, int target) {
  const int fd = ::open(path, flags | O_CLOEXEC, 0644);
  if (fd < 0) return;
  ::dup2(fd, target);
  ::close(fd);
}

// Runs in the process that outlives the command.
[[noreturn]] void detached(const UpFlags& flags, const ClusterConfig& config,
                           const CommandContext& context, const rundir::RunDirLock& lock, Fd pipe) {
  ::setsid();
  redirect("/dev/null", O_RDONLY, STDIN_FILENO);
  const std::string log = flags.run_dir + "/supervisor.log";
  redirect(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, STDOUT_FILENO);
  redirect(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, STDERR_FILENO);
  supervise::Voice voice = supervise::Voice::to_command(std::move(pipe));
  Result<int> code = kExitOk;
  if (const Status written = lock.write_pid(); written) {
    code = supervise_cluster(flags, config, context, voice);
  } else {
    code = fail(written.error());
  }
  if (!code) {
    voice.say(exit_message("tandem up", code.error()));
    code = exit_code(code.error());
  }
  voice.release(*code);
  std::_Exit(*code);
}

// Everything that a role would refuse at its start, before any starts.
Status check(const ClusterFile& file, const Clock& clock) {
  const preflight::Findings findings =
      preflight::judge(file, preflight::read_machine(file.config), clock);
  for (const preflight::Finding& finding : findings) {
    if (!finding.refuses)
      std::fprintf(stderr, "warning: %s\n", preflight::to_string(finding).c_str());
  }
  return preflight::refusal(findings);
}

Status up(UpFlags flags, CommandContext& context) {
  TANDEM_ASSIGN(const ClusterFile file, load_cluster_file(flags.config, context.environment));
  const ClusterConfig& config = file.config;
  flags.run_dir = rundir::resolve_run_dir(flags.run_dir, context.environment);
  TANDEM_ASSIGN(const rundir::RunDirLock lock, rundir::RunDirLock::acquire(flags.run_dir));
  TANDEM_TRY(rundir::check_leftovers(flags.run_dir, flags.config));
  TANDEM_TRY(rundir::stop_leftovers(flags.run_dir, context.clock, say_on_terminal));
  supervise::Supervisor::block_signals();
  TANDEM_TRY(check(file, context.clock));
  if (!flags.detach) {
    supervise::Voice voice = supervise::Voice::to_terminal();
    TANDEM_ASSIGN(context.exit_code, supervise_cluster(flags, config, context, voice));
    return {};
  }
  TANDEM_ASSIGN(Fd signals, supervise::end_signals());
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return fail(ErrorCode::kIo, std::string("pipe: ") + std::strerror(errno));
  }
  Fd ours(ends[0]);
  Fd theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return fail(ErrorCode::kIo, std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    ours = Fd();
    signals = Fd();
    detached(flags, config, context, lock, std::move(theirs));
  }
  theirs = Fd();
  context.exit_code = supervise::follow(std::move(ours), std::move(signals), child);
  return {};
}

// Waits until nobody holds the run directory; false on time-out.
bool wait_for_release(const std::string& run_dir, Duration timeout, const Clock& clock) {
  const TimePoint deadline = clock.now() + timeout;
  while (rundir::lock_holder(run_dir)) {
    if (clock.now() > deadline) return false;
    ::usleep(50'000);
  }
  return true;
}

struct DownFlags {
  std::string run_dir;
  std::string config;  // stop a cluster of this file only; empty: whichever runs
};

// Refuses to stop the cluster of another file.
Status check_same_file(const std::string& run_dir, pid_t holder, const std::string& config) {
  if (rundir::supervisor_of(run_dir, config) == holder) return {};
  const std::string other = rundir::config_path_of(run_dir, holder);
  return fail(ErrorCode::kUnavailable,
              "the cluster that runs from " + run_dir + " (process " + std::to_string(holder) +
                  ") is " + (other.empty() ? "only starting" : "of " + other) + ", not of " +
                  config + "; `tandem down` without --config stops it");
}

Status down(const DownFlags& flags, const CommandContext& context) {
  const std::string run_dir = rundir::resolve_run_dir(flags.run_dir, context.environment);
  const std::optional<pid_t> holder = rundir::lock_holder(run_dir);
  if (!flags.config.empty()) {
    std::error_code error;
    if (!fs::exists(flags.config, error)) {
      return fail(ErrorCode::kInvalidArgument, "--config " + flags.config + ": no such file");
    }
    if (holder) TANDEM_TRY(check_same_file(run_dir, *holder, flags.config));
  }
  if (!holder && !rundir::leftovers(run_dir).empty()) {
    if (!flags.config.empty()) TANDEM_TRY(rundir::check_leftovers(run_dir, flags.config));
    return rundir::stop_leftovers(run_dir, context.clock, say_on_terminal);
  }
  if (!holder) {
    std::fprintf(stderr,
                 "nothing is running from %s; a cluster that was started in another folder is "
                 "found with --run-dir\n",
                 run_dir.c_str());
    return {};
  }
  const auto state = rundir::read_state(run_dir);
  if (::kill(*holder, SIGTERM) != 0) {
    return fail(ErrorCode::kIo,
                "cannot signal process " + std::to_string(*holder) + ": " + std::strerror(errno));
  }
  std::fprintf(stderr, "stopping process %d and its roles\n", *holder);
  const Duration limit = std::chrono::seconds(5 + (state ? state->stop_seconds : 0));
  if (wait_for_release(run_dir, limit, context.clock)) return {};
  std::fprintf(stderr, "not gone after %.0f s; killing\n", to_seconds(limit));
  ::kill(*holder, SIGKILL);
  if (wait_for_release(run_dir, std::chrono::seconds(5), context.clock)) {
    return rundir::stop_leftovers(run_dir, context.clock, say_on_terminal);
  }
  return fail(ErrorCode::kUnavailable, "process " + std::to_string(*holder) + " cannot be stopped");
}

}  // namespace

void add_up(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* command = app.add_subcommand(
      "up",
      "start every role of a cluster file on this box, keep them running, stop them on Ctrl-C");
  command->add_option("FILE", flags->config, "cluster file (docs/configuration.md)")->required();
  command->add_flag("-d,--detach", flags->detach,
                    "return once everything is ready; stop it with `tandem down`");
  command->add_option(
      "--run-dir", flags->run_dir,
      "folder for ports, logs and the lock; default $XDG_RUNTIME_DIR/tandem or ./run");
  command->add_option("--timeout", flags->timeout_seconds, "seconds until everything must be ready")
      ->check(between(0.001, 1e6));
  command->callback([flags, &context] { run(context, "up", [&] { return up(*flags, context); }); });
}

void add_down(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<DownFlags>();
  CLI::App* command = app.add_subcommand("down", "stop what `tandem up` started");
  command->add_option("--run-dir", flags->run_dir, "as given to `tandem up`");
  command->add_option("--config", flags->config,
                      "stop only a cluster of this file: exit code 1 when another one runs");
  command->callback(
      [flags, &context] { run(context, "down", [&] { return down(*flags, context); }); });
}

}  // namespace tandem::cli
