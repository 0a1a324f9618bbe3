#include "tools/supervise/supervisor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <map>
#include <utility>
#include <vector>

#include "common/base/process_limits.h"
#include "common/config/units.h"
#include "tools/client/http_fetch.h"
#include "tools/supervise/child.h"
#include "tools/supervise/run_dir.h"

namespace tandem::supervise {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kTick = milliseconds(50);       // while something is starting or stopping
constexpr Duration kIdleTick = milliseconds(500);  // signals wake the loop anyway
constexpr Duration kFirstPause =
    milliseconds(200);  // before a restart; doubles up to kLongestPause
constexpr Duration kLongestPause = seconds(10);
constexpr Duration kSteady = seconds(60);  // running that long: the next pause is short again
constexpr uint32_t kStartAttempts = 3;     // of a role that never got ready
constexpr int kConfigExit = 2;
constexpr Duration kAfterDrain = seconds(5);  // from the end of a role's drain to SIGKILL

enum class RoleState : uint8_t { kWaiting, kStarting, kReady, kPausing, kStopped };

constexpr std::array<const char*, 5> kStateNames{"waiting", "starting", "ready", "restarting",
                                                 "stopped"};

struct Role {
  std::string name;
  std::string program;
  std::string health;  // which endpoint answers the probe
  std::string probe;   // 200 there: ready
  bool is_router = false;
  RoleState state = RoleState::kWaiting;
  pid_t pid = -1;
  uint32_t restarts = 0;
  uint32_t attempts = 0;  // starts since it was last ready
  bool was_ready = false;
  TimePoint started;
  TimePoint next_start;
  Duration pause = kFirstPause;
  std::string url;  // of its health endpoint
  std::unique_ptr<client::HttpFetcher> fetcher;

  [[nodiscard]] bool alive() const { return pid > 0; }
};

std::string port_of(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? std::string() : address.substr(colon + 1);
}

}  // namespace

struct Supervisor::State {
  const ClusterConfig& config;
  Environment environment;  // of the children; gains the router's real ports
  SupervisorOptions options;
  Callbacks callbacks;
  const Clock& clock;
  std::vector<Role> roles;
  bool announced = false;
  bool stopping = false;
  const bool on_terminal = has_terminal();  // asked before it may be gone; else nohup
  bool hurry = false;                       // a second signal has come

  State(const ClusterConfig& c, const Environment& e, SupervisorOptions o, Callbacks cb,
        const Clock& k)
      : config(c), environment(e), options(std::move(o)), callbacks(std::move(cb)), clock(k) {}

  void add_role(const std::string& name, const char* program, bool is_router);
  [[nodiscard]] Role* router();
  void progress(const Role& role, const std::string& what) const;
  void write_state_file() const;
  void wait_for_signal(Duration timeout);
  void reap();
  Status start(Role& role);
  Status advance(Role& role);
  Status on_exit(Role& role, int wait_status);
  void check_ready(Role& role);
  void adopt_router_ports(const RoleEndpoints& published);
  [[nodiscard]] bool all_ready() const;
  Status bring_up();
  Status keep_up();
  [[nodiscard]] Duration drain_limit(bool routers) const;
  void stop_roles(bool routers);
  void stop_all();

  std::vector<std::pair<pid_t, int>> exited;
};

void Supervisor::State::add_role(const std::string& name, const char* program, bool is_router) {
  Role role;
  role.name = name;
  role.program = options.program_dir + "/" + program;
  role.is_router = is_router;
  role.health = is_router ? "http" : "metrics";
  // A router whose decode nodes are on other boxes has done its part when it listens.
  role.probe = is_router && config.decode.empty() ? "/health/live" : "/health/ready";
  roles.push_back(std::move(role));
}

Role* Supervisor::State::router() {
  for (Role& role : roles) {
    if (role.is_router) return &role;
  }
  return nullptr;
}

void Supervisor::State::progress(const Role& role, const std::string& what) const {
  std::string line = role.name;
  line.resize(std::max<size_t>(line.size() + 2, 14), ' ');
  if (callbacks.progress) callbacks.progress(line + what);
}

void Supervisor::State::write_state_file() const {
  SupervisorState out;
  out.config = options.config_path;
  out.stop_seconds = std::chrono::ceil<seconds>(drain_limit(/*routers=*/true) +
                                                drain_limit(/*routers=*/false) + 2 * kAfterDrain)
                         .count();
  for (const Role& role : roles) {
    if (role.is_router) out.url = role.url;
    out.processes.push_back({.name = role.name,
                             .pid = role.alive() ? role.pid : 0,
                             .state = kStateNames[static_cast<size_t>(role.state)],
                             .restarts = role.restarts});
  }
  if (const Status written = write_state(options.run_dir, out); !written && callbacks.progress) {
    callbacks.progress(written.error().detail);
  }
}

void Supervisor::State::wait_for_signal(Duration timeout) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&set, signal);
  const auto whole = std::chrono::duration_cast<seconds>(timeout);
  const timespec wait{.tv_sec = whole.count(), .tv_nsec = (timeout - whole).count()};
  const int signal = ::sigtimedwait(&set, nullptr, &wait);
  if (signal == SIGINT || signal == SIGTERM || (signal == SIGHUP && on_terminal)) {
    hurry = hurry || (stopping && signal != SIGHUP);
    stopping = true;
  }
  reap();
}

void Supervisor::State::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    exited.emplace_back(pid, status);
}

Status Supervisor::State::start(Role& role) {
  // What an earlier process of this name published must not be taken for this one's.
  ::unlink((options.run_dir + "/" + role.name + ".json").c_str());
  ChildSpec spec;
  spec.program = role.program;
  spec.arguments = {"--config", options.config_path, "--run-dir", options.run_dir};
  if (!role.is_router) spec.arguments.insert(spec.arguments.end(), {"--name", role.name});
  spec.environment = environment;
  spec.log_path = options.run_dir + "/" + role.name + ".log";
  TANDEM_ASSIGN(role.pid, spawn(spec));
  role.state = RoleState::kStarting;
  role.started = clock.now();
  role.fetcher.reset();
  ++role.attempts;
  progress(role, "started, process " + std::to_string(role.pid));
  write_state_file();
  return {};
}

// Nodes must find the router where it was told to listen, and a restarted router must come back
// there, also when the file says "any free port".
void Supervisor::State::adopt_router_ports(const RoleEndpoints& published) {
  for (const auto& [kind, variable] : std::map<std::string, std::string>{
           {"http", "TANDEM_ROUTER_HTTP_PORT"}, {"control", "TANDEM_ROUTER_CONTROL_PORT"}}) {
    const auto found = published.endpoints.find(kind);
    if (found != published.endpoints.end()) environment[variable] = port_of(found->second);
  }
}

void Supervisor::State::check_ready(Role& role) {
  if (!role.fetcher) {
    const auto published = read_endpoints(options.run_dir, role.name);
    if (!published || published->pid != role.pid) return;
    const auto endpoint = published->endpoints.find(role.health);
    if (endpoint == published->endpoints.end()) return;
    if (role.is_router) adopt_router_ports(*published);
    const bool tls = role.is_router && config.router.http.tls.enabled();
    role.url = client::url_of(endpoint->second, tls);
    auto fetcher = client::HttpFetcher::create(
        {.url = role.url, .api_key = {}, .timeout = seconds(2), .verify_certificate = false});
    if (!fetcher) return;
    role.fetcher = std::move(*fetcher);
    if (role.is_router) progress(role, "listening on " + role.url);
  }
  const auto answer = role.fetcher->get(role.probe);
  if (!answer || answer->status != 200) return;
  role.state = RoleState::kReady;
  role.was_ready = true;
  role.attempts = 0;
  char took[32];
  std::snprintf(took, sizeof(took), "ready after %.2f s", to_seconds(clock.now() - role.started));
  progress(role, took);
  write_state_file();
}

Status Supervisor::State::on_exit(Role& role, int wait_status) {
  const std::string how = describe_exit(wait_status);
  const Duration lived = clock.now() - role.started;
  role.pid = -1;
  role.fetcher.reset();
  role.state = RoleState::kPausing;
  if (lived > kSteady) role.pause = kFirstPause;
  role.next_start = clock.now() + role.pause;
  role.pause = std::min(role.pause * 2, kLongestPause);
  ++role.restarts;
  progress(role, "ended with " + how);
  write_state_file();
  if (role.was_ready) return {};
  const bool config_error = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kConfigExit;
  if (!config_error && role.attempts < kStartAttempts) return {};
  return fail(config_error ? ErrorCode::kConfig : ErrorCode::kUnavailable,
              role.name + " does not start (" + how + "); the end of " + options.run_dir + "/" +
                  role.name + ".log:\n" + tail_of(options.run_dir + "/" + role.name + ".log", 8));
}

Status Supervisor::State::advance(Role& role) {
  switch (role.state) {
    case RoleState::kWaiting: {
      // Nodes need the router's control port, which it has published when its fetcher exists.
      const Role* first = router();
      const bool may_start = role.is_router || first == nullptr || first->fetcher != nullptr;
      return may_start ? start(role) : Status();
    }
    case RoleState::kStarting:
      check_ready(role);
      return {};
    case RoleState::kPausing:
      return clock.now() < role.next_start ? Status() : start(role);
    case RoleState::kReady:
    case RoleState::kStopped:
      return {};
  }
  return {};
}

bool Supervisor::State::all_ready() const {
  return std::all_of(roles.begin(), roles.end(),
                     [](const Role& role) { return role.state == RoleState::kReady; });
}

Status Supervisor::State::keep_up() {
  for (const auto& [pid, status] : std::exchange(exited, {})) {
    for (Role& role : roles) {
      if (role.pid == pid) TANDEM_TRY(on_exit(role, status));
    }
  }
  for (Role& role : roles) TANDEM_TRY(advance(role));
  return {};
}

Status Supervisor::State::bring_up() {
  const TimePoint deadline = clock.now() + options.ready_timeout;
  while (!stopping) {
    TANDEM_TRY(keep_up());
    if (all_ready() && !announced) {
      announced = true;
      const Role* first = router();
      if (callbacks.ready) callbacks.ready(first == nullptr ? std::string() : first->url);
    }
    if (!announced && clock.now() > deadline) {
      std::string late;
      for (const Role& role : roles) {
        if (role.state != RoleState::kReady) late += (late.empty() ? "" : ", ") + role.name;
      }
      return fail(ErrorCode::kUnavailable, "not ready after " +
                                               format_duration(options.ready_timeout) + ": " +
                                               late + "; see the logs in " + options.run_dir);
    }
    wait_for_signal(all_ready() ? kIdleTick : kTick);
  }
  return {};
}

Duration Supervisor::State::drain_limit(bool routers) const {
  if (routers) return config.router.drain_timeout;
  Duration longest{};
  for (const auto& node : config.prefill) longest = std::max(longest, node.drain_timeout);
  for (const auto& node : config.decode) longest = std::max(longest, node.drain_timeout);
  return longest;
}

// SIGTERM, another one when there is hurry, and SIGKILL for what is left after the time for either.
void Supervisor::State::stop_roles(bool routers) {
  const auto left = [&] {
    return std::any_of(roles.begin(), roles.end(),
                       [&](const Role& role) { return role.is_router == routers && role.alive(); });
  };
  const auto signal_all = [&](int signal) {
    for (const Role& role : roles) {
      if (role.is_router == routers && role.alive()) ::kill(role.pid, signal);
    }
  };
  signal_all(SIGTERM);
  TimePoint deadline = clock.now() + drain_limit(routers) + kAfterDrain;
  bool hurried = false;
  bool killed = false;
  while (left()) {
    if (hurry && !hurried) {  // a router then tells its clients that it goes
      signal_all(SIGTERM);
      deadline = std::min(deadline, clock.now() + kAfterDrain);
      hurried = true;
    }
    if (!killed && clock.now() > deadline) {
      signal_all(SIGKILL);
      killed = true;
    }
    for (const auto& [pid, status] : std::exchange(exited, {})) {
      for (Role& role : roles) {
        if (role.pid != pid) continue;
        role.pid = -1;
        role.state = RoleState::kStopped;
        progress(role, "stopped, " + describe_exit(status));
      }
    }
    if (left()) wait_for_signal(kTick);
  }
}

void Supervisor::State::stop_all() {
  stopping = true;
  stop_roles(/*routers=*/true);
  stop_roles(/*routers=*/false);
  for (Role& role : roles) {
    role.state = RoleState::kStopped;
    ::unlink((options.run_dir + "/" + role.name + ".json").c_str());
  }
  ::unlink((options.run_dir + "/supervisor.json").c_str());
}

Supervisor::Supervisor(const ClusterConfig& config, const Environment& environment,
                       SupervisorOptions options, Callbacks callbacks, const Clock& clock)
    : state_(std::make_unique<State>(config, environment, std::move(options), std::move(callbacks),
                                     clock)) {
  if (config.router.enabled) state_->add_role("router", "tandem-router", true);
  for (const auto& node : config.prefill) state_->add_role(node.name, "tandem-prefill", false);
  for (const auto& node : config.decode) state_->add_role(node.name, "tandem-decode", false);
}

Supervisor::~Supervisor() = default;

Status Supervisor::run() {
  const Status status = state_->bring_up();
  state_->stop_all();
  return status;
}

void Supervisor::block_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace tandem::supervise
