#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
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

#include "common/config/config.h"
#include "common/preflight/judge.h"
#include "tools/cli/command.h"
#include "tools/number_flag.h"
#include "tools/supervise/run_dir.h"
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

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody listens any more
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Where progress lines go: the terminal, or with --detach a pipe to the process that waits for
// readiness and, after that, the supervisor's log.
class Voice {
 public:
  explicit Voice(int fd) : fd_(fd) {}
  void say(const std::string& line) const { write_all(fd_, line + "\n"); }
  void move_to(int fd) { fd_ = fd; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

std::string announcement(const std::string& url, const std::string& run_dir) {
  if (url.empty()) return "ready; logs in " + run_dir;
  return "ready: API " + url + "/v1, status page " + url + "/, logs in " + run_dir;
}

Status supervise_cluster(const UpFlags& flags, const ClusterConfig& config,
                         const CommandContext& context, Voice& voice,
                         const std::function<void()>& on_ready) {
  supervise::SupervisorOptions options;
  options.config_path = flags.config;
  options.run_dir = flags.run_dir;
  options.program_dir = program_dir();
  options.ready_timeout = from_seconds(flags.timeout_seconds);
  supervise::Supervisor supervisor(config, context.environment, options,
                                   {.progress = [&](const std::string& line) { voice.say(line); },
                                    .ready =
                                        [&](const std::string& url) {
                                          voice.say(announcement(url, flags.run_dir));
                                          on_ready();
                                        }},
                                   context.clock);
  return supervisor.run();
}

// The last byte of the pipe is the exit code; what comes before is for the terminal.
int relay_until_ready(int from, pid_t child) {
  std::string held;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    held.append(buffer.data(), static_cast<size_t>(got));
    write_all(STDERR_FILENO, std::string_view(held).substr(0, held.size() - 1));
    held.erase(0, held.size() - 1);
  }
  if (!held.empty() && held.back() >= 0 && held.back() <= kExitUsage) return held.back();
  int status = 0;
  ::waitpid(child, &status, 0);
  return kExitFailure;
}

void redirect(const char* path, int flags, int target) {
  const int fd = ::open(path, flags | O_CLOEXEC, 0644);
  if (fd < 0) return;
  ::dup2(fd, target);
  ::close(fd);
}

// Runs in the process that outlives the command.
[[noreturn]] void detached(const UpFlags& flags, const ClusterConfig& config,
                           const CommandContext& context, const supervise::RunDirLock& lock,
                           int pipe) {
  ::setsid();
  redirect("/dev/null", O_RDONLY, STDIN_FILENO);
  const std::string log = flags.run_dir + "/supervisor.log";
  redirect(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, STDOUT_FILENO);
  redirect(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, STDERR_FILENO);
  Voice voice(pipe);
  const auto report = [&](int code) {
    if (voice.fd() != pipe) return;
    const char last = static_cast<char>(code);
    write_all(pipe, std::string_view(&last, 1));
    ::close(pipe);
    voice.move_to(STDERR_FILENO);
  };
  Status status = lock.write_pid();
  if (status) {
    status = supervise_cluster(flags, config, context, voice, [&] { report(kExitOk); });
  }
  if (!status) voice.say("tandem up: " + status.error().detail);
  const int code =
      status ? kExitOk : (status.error().code == ErrorCode::kConfig ? kExitUsage : kExitFailure);
  report(code);
  std::_Exit(code);
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
  if (flags.run_dir.empty()) flags.run_dir = supervise::default_run_dir(context.environment);
  TANDEM_ASSIGN(const supervise::RunDirLock lock, supervise::RunDirLock::acquire(flags.run_dir));
  supervise::Supervisor::block_signals();
  TANDEM_TRY(check(file, context.clock));
  if (!flags.detach) {
    Voice voice(STDERR_FILENO);
    return supervise_cluster(flags, config, context, voice, [] {});
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return fail(ErrorCode::kIo, std::string("pipe: ") + std::strerror(errno));
  }
  const pid_t child = ::fork();
  if (child < 0) return fail(ErrorCode::kIo, std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    ::close(ends[0]);
    detached(flags, config, context, lock, ends[1]);
  }
  ::close(ends[1]);
  context.exit_code = relay_until_ready(ends[0], child);
  return {};
}

// Waits until nobody holds the run directory; false on time-out.
bool wait_for_release(const std::string& run_dir, Duration timeout, const Clock& clock) {
  const TimePoint deadline = clock.now() + timeout;
  while (supervise::lock_holder(run_dir)) {
    if (clock.now() > deadline) return false;
    ::usleep(50'000);
  }
  return true;
}

Status down(std::string run_dir, const CommandContext& context) {
  if (run_dir.empty()) run_dir = supervise::default_run_dir(context.environment);
  const std::optional<pid_t> holder = supervise::lock_holder(run_dir);
  if (!holder) {
    std::fprintf(stderr,
                 "nothing is running from %s; a cluster that was started in another folder is "
                 "found with --run-dir\n",
                 run_dir.c_str());
    return {};
  }
  const auto state = supervise::read_state(run_dir);
  if (::kill(*holder, SIGTERM) != 0) {
    return fail(ErrorCode::kIo,
                "cannot signal process " + std::to_string(*holder) + ": " + std::strerror(errno));
  }
  std::fprintf(stderr, "stopping process %d and its roles\n", *holder);
  const Duration limit = std::chrono::seconds(5 + (state ? state->stop_seconds : 0));
  if (wait_for_release(run_dir, limit, context.clock)) return {};
  std::fprintf(stderr, "not gone after %.0f s; killing\n", to_seconds(limit));
  ::kill(*holder, SIGKILL);
  if (state) {
    for (const auto& process : state->processes) {
      if (process.pid > 1) ::kill(process.pid, SIGKILL);
    }
  }
  if (wait_for_release(run_dir, std::chrono::seconds(5), context.clock)) return {};
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
  command
      ->add_option("--timeout", flags->timeout_seconds,
                   "seconds until everything must be ready; default 300")
      ->check(between(0.001, 1e6));
  command->callback([flags, &context] { run(context, "up", [&] { return up(*flags, context); }); });
}

void add_down(CLI::App& app, CommandContext& context) {
  auto run_dir = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("down", "stop what `tandem up` started");
  command->add_option("--run-dir", *run_dir, "as given to `tandem up`");
  command->callback(
      [run_dir, &context] { run(context, "down", [&] { return down(*run_dir, context); }); });
}

}  // namespace tandem::cli
