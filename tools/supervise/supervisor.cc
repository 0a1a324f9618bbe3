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

#include "common/base/exit.h"
#include "common/base/process_limits.h"
#include "common/config/units.h"
#include "tools/client/http_fetch.h"
#include "tools/run_dir/run_dir.h"
#include "tools/supervise/child.h"
#include "tools/supervise/node_report.h"

namespace tandem::supervise {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kTick = milliseconds(50);       // while something is starting or stopping
constexpr Duration kIdleTick = milliseconds(500);  // signals wake the loop anyway
constexpr Duration kFirstPause =
    milliseconds(200);  // before a restart; doubles up to kLongestPause
constexpr Duration kLongestPause = seconds(10);
constexpr Duration kSteady = seconds(60);     // running that long: the next pause is short again
constexpr uint32_t kStartAttempts = 3;        // of a role that never got ready
constexpr Duration kAfterDrain = seconds(5);  // from the end of a role's drain to SIGKILL
// How long a router elsewhere may be out of reach before its nodes are left to wait for it.
constexpr Duration kPatience = seconds(5);

// How much time the signals that have come leave to what stops.
enum class Haste : uint8_t { kDrain, kHurry, kKill };

enum class RoleState : uint8_t { kWaiting, kStarting, kReady, kPausing, kStopped };

constexpr std::array<const char*, 5> kStateNames{"waiting", "starting", "ready", "restarting",
                                                 "stopped"};

struct Role {
  std::string name;
  std::string kind;     // router, prefill, decode
  bool remote = false;  // a node whose router is not of this file
  RoleState state = RoleState::kWaiting;
  pid_t pid = -1;
  uint32_t restarts = 0;
  uint32_t attempts = 0;  // starts since it was last ready or ran for a while
  bool was_ready = false;
  uint64_t log_from = 0;  // where the words of this process begin in its log
  NodeReport report;      // a node's last one
  TimePoint unreachable_since;
  TimePoint started;
  TimePoint next_start;
  Duration pause = kFirstPause;
  bool published = false;  // this process has told where it answers
  std::string url;         // there; of the last process while this one has not
  // While something is to be asked. It has a thread, and the kernel tells children of a parent's
  // death once for each thread that it had: a second SIGTERM cuts a role's drain short.
  std::unique_ptr<client::HttpFetcher> fetcher;

  [[nodiscard]] bool alive() const { return pid > 0; }
  [[nodiscard]] bool is_router() const { return kind == "router"; }
  [[nodiscard]] std::string program() const { return "tandem-" + kind; }
};

std::string port_of(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? std::string() : address.substr(colon + 1);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

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
  int interrupted_by = 0;                   // the signal, if it came before the announcement
  const bool on_terminal = has_terminal();  // asked before it may be gone; else nohup
  Haste haste = Haste::kDrain;

  State(const ClusterConfig& c, const Environment& e, SupervisorOptions o, Callbacks cb,
        const Clock& k)
      : config(c), environment(e), options(std::move(o)), callbacks(std::move(cb)), clock(k) {}

  void add_role(const std::string& name, const char* kind, bool remote);
  void add_node(const NodeSettings& node, const char* kind);
  [[nodiscard]] Role* router();
  void progress(const Role& role, const std::string& what) const;
  void write_state_file() const;
  void wait_for_signal(Duration timeout);
  void make_haste();
  void reap();
  Status start(Role& role);
  Status advance(Role& role);
  Status on_exit(Role& role, int wait_status);
  void check_ready(Role& role);
  bool find_endpoint(Role& role);
  [[nodiscard]] static bool answers(const Role& role, const char* path);
  [[nodiscard]] bool router_ready(Role& role);
  [[nodiscard]] bool node_ready(Role& role);
  [[nodiscard]] bool waits_elsewhere(const Role& role) const;
  [[nodiscard]] bool refused_for_good(const Role& role) const;
  [[nodiscard]] bool settled(const Role& role) const;
  [[nodiscard]] Ready readiness();
  [[nodiscard]] Error not_ready_in_time() const;
  [[nodiscard]] std::string log_of(const Role& role) const;
  void adopt_router_ports(const rundir::RoleEndpoints& published);
  [[nodiscard]] bool all_settled() const;
  Status bring_up();
  Status keep_up();
  [[nodiscard]] Duration drain_limit(bool routers) const;
  void stop_roles(bool routers);
  void stop_all();

  std::vector<std::pair<pid_t, int>> exited;
};

void Supervisor::State::add_role(const std::string& name, const char* kind, bool remote) {
  Role role;
  role.name = name;
  role.kind = kind;
  role.remote = remote;
  roles.push_back(std::move(role));
}

void Supervisor::State::add_node(const NodeSettings& node, const char* kind) {
  const bool ours = router_address(config, node) == router_address(config, NodeSettings{});
  add_role(node.name, kind, !config.router.enabled || !ours);
}

Role* Supervisor::State::router() {
  for (Role& role : roles) {
    if (role.is_router()) return &role;
  }
  return nullptr;
}

void Supervisor::State::progress(const Role& role, const std::string& what) const {
  std::string line = role.name;
  line.resize(std::max<size_t>(line.size() + 2, 14), ' ');
  if (callbacks.progress) callbacks.progress(line + what);
}

void Supervisor::State::write_state_file() const {
  rundir::SupervisorState out;
  out.config = options.config_path;
  out.stop_seconds = std::chrono::ceil<seconds>(drain_limit(/*routers=*/true) +
                                                drain_limit(/*routers=*/false) + 2 * kAfterDrain)
                         .count();
  for (const Role& role : roles) {
    if (role.is_router()) out.url = role.url;
    out.processes.push_back({.name = role.name,
                             .role = role.kind,
                             .pid = role.alive() ? role.pid : 0,
                             .state = kStateNames[static_cast<size_t>(role.state)],
                             .restarts = role.restarts});
  }
  if (const Status written = rundir::write_state(options.run_dir, out);
      !written && callbacks.progress) {
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
    if (stopping && signal != SIGHUP) make_haste();
    if (!stopping && !announced) interrupted_by = signal;
    stopping = true;
  }
  reap();
}

void Supervisor::State::make_haste() {
  if (haste == Haste::kKill) return;
  const bool again = haste == Haste::kHurry;
  haste = again ? Haste::kKill : Haste::kHurry;
  if (!callbacks.progress) return;
  callbacks.progress(again ? "killing what is left"
                           : "cutting the drain short; another signal kills what is left");
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
  spec.program = options.program_dir + "/" + role.program();
  spec.arguments = {"--config", options.config_path, "--run-dir", options.run_dir};
  if (!role.is_router()) spec.arguments.insert(spec.arguments.end(), {"--name", role.name});
  spec.environment = environment;
  spec.log_path = log_of(role);
  role.log_from = log_size(spec.log_path);
  TANDEM_ASSIGN(role.pid, spawn(spec));
  role.state = RoleState::kStarting;
  role.started = clock.now();
  role.published = false;
  role.fetcher.reset();
  role.report = {};
  ++role.attempts;
  progress(role, "started, process " + std::to_string(role.pid));
  write_state_file();
  return {};
}

// Nodes must find the router where it was told to listen, and a restarted router must come back
// there, also when the file says "any free port".
void Supervisor::State::adopt_router_ports(const rundir::RoleEndpoints& published) {
  for (const auto& [kind, variable] : std::map<std::string, std::string>{
           {"http", "TANDEM_ROUTER_HTTP_PORT"}, {"control", "TANDEM_ROUTER_CONTROL_PORT"}}) {
    const auto found = published.endpoints.find(kind);
    if (found != published.endpoints.end()) environment[variable] = port_of(found->second);
  }
}

std::string Supervisor::State::log_of(const Role& role) const {
  return options.run_dir + "/" + role.name + ".log";
}

// Whether the role has told where it answers, so that it can be asked.
bool Supervisor::State::find_endpoint(Role& role) {
  const bool tls = role.is_router() && config.router.http.tls.enabled();
  if (!role.published) {
    const auto published = rundir::read_endpoints(options.run_dir, role.name);
    if (!published || published->pid != role.pid) return false;
    const auto endpoint = published->endpoints.find(role.is_router() ? "http" : "metrics");
    if (endpoint == published->endpoints.end()) return false;
    if (role.is_router()) adopt_router_ports(*published);
    role.url = client::url_of(endpoint->second, tls);
    role.published = true;
    if (role.is_router()) progress(role, "listening on " + role.url);
  }
  if (role.fetcher) return true;
  auto fetcher = client::HttpFetcher::create(
      {.url = role.url, .api_key = {}, .timeout = seconds(2), .verify_certificate = false});
  if (!fetcher) return false;
  role.fetcher = std::move(*fetcher);
  return true;
}

bool Supervisor::State::answers(const Role& role, const char* path) {
  const auto answer = role.fetcher->get(path);
  return answer && answer->status == 200;
}

bool Supervisor::State::router_ready(Role& role) {
  // A router whose decode nodes are on other boxes has done its part when it listens.
  const char* probe = config.decode.empty() ? "/health/live" : "/health/ready";
  return answers(role, probe);
}

// Says what keeps a node from its router, once each time that it changes.
bool Supervisor::State::node_ready(Role& role) {
  auto report = ask_node(*role.fetcher);
  if (!report) return false;
  const NodeReport before = std::exchange(role.report, std::move(*report));
  const NodeReport& now = role.report;
  if (now.unreachable() && !before.unreachable()) role.unreachable_since = clock.now();
  // The router of this file starts meanwhile: that it cannot be reached yet is no news.
  const bool told = before.registration == now.registration && before.reason == now.reason;
  if (refused_for_good(role)) return false;  // the end, and its reason
  if (!told && (now.refused() || (now.unreachable() && role.remote))) {
    progress(role, describe(now) + "; it goes on trying");
  }
  return now.ready();
}

void Supervisor::State::check_ready(Role& role) {
  if (!find_endpoint(role)) return;
  if (role.is_router() ? !router_ready(role) : !node_ready(role)) return;
  role.fetcher.reset();
  role.state = RoleState::kReady;
  role.was_ready = true;
  role.attempts = 0;
  char took[32];
  std::snprintf(took, sizeof(took), "ready after %.2f s", to_seconds(clock.now() - role.started));
  progress(role, took + (role.remote ? ", " + describe(role.report) : std::string()));
  write_state_file();
}

bool Supervisor::State::waits_elsewhere(const Role& role) const {
  return role.state == RoleState::kStarting && role.remote && role.report.unreachable();
}

// As with a role that cannot start: what has run, or has been let go to wait, goes on trying.
bool Supervisor::State::refused_for_good(const Role& role) const {
  return !announced && !role.was_ready && role.report.refused() && role.report.lasting;
}

bool Supervisor::State::settled(const Role& role) const {
  if (role.state == RoleState::kReady) return true;
  const Duration patience = std::min(kPatience, options.ready_timeout / 2);
  return waits_elsewhere(role) && (announced || clock.now() - role.unreachable_since > patience);
}

Status Supervisor::State::on_exit(Role& role, int wait_status) {
  const std::string how = describe_exit(wait_status);
  const Duration lived = clock.now() - role.started;
  role.pid = -1;
  role.fetcher.reset();
  role.state = RoleState::kPausing;
  if (lived > kSteady) {
    role.pause = kFirstPause;
    role.attempts = 0;
  }
  role.next_start = clock.now() + role.pause;
  role.pause = std::min(role.pause * 2, kLongestPause);
  ++role.restarts;
  const std::string why = last_words(log_of(role), role.log_from, role.program(), 0);
  progress(role, "ended with " + how + (why.empty() ? "" : ": " + first_line(why)));
  write_state_file();
  // What has run can run again: a file that is missing for a moment does not end the others.
  if (role.was_ready) return {};
  const bool lasting = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kExitUsage;
  if (!lasting && role.attempts < kStartAttempts) return {};
  std::string words = last_words(log_of(role), role.log_from, role.program(), 8);
  while (words.ends_with('\n')) words.pop_back();
  return fail(
      lasting ? ErrorCode::kConfig : ErrorCode::kUnavailable,
      role.name + " does not start (" + how + "); its log is " + log_of(role) + ":\n" + words);
}

Status Supervisor::State::advance(Role& role) {
  switch (role.state) {
    case RoleState::kWaiting: {
      // Nodes need the router's control port.
      const Role* first = router();
      const bool may_start = role.is_router() || first == nullptr || first->published;
      return may_start ? start(role) : Status();
    }
    case RoleState::kStarting:
      check_ready(role);
      if (!refused_for_good(role)) return {};
      return fail(ErrorCode::kConfig,
                  role.name + " " + describe(role.report) + "; its log is " + log_of(role));
    case RoleState::kPausing:
      return clock.now() < role.next_start ? Status() : start(role);
    case RoleState::kReady:
    case RoleState::kStopped:
      return {};
  }
  return {};
}

bool Supervisor::State::all_settled() const {
  return std::all_of(roles.begin(), roles.end(),
                     [this](const Role& role) { return settled(role); });
}

Ready Supervisor::State::readiness() {
  Ready out;
  if (Role* first = router(); first != nullptr) {
    out.url = first->url;
    out.serves =
        !config.decode.empty() || (find_endpoint(*first) && answers(*first, "/health/ready"));
    first->fetcher.reset();
    const auto published = rundir::read_endpoints(options.run_dir, first->name);
    if (published && published->endpoints.contains("control")) {
      out.control = published->endpoints.at("control");
    }
  }
  for (const Role& role : roles) {
    if (waits_elsewhere(role)) out.waiting.push_back(role.name + " " + describe(role.report));
  }
  return out;
}

Error Supervisor::State::not_ready_in_time() const {
  std::string late;
  for (const Role& role : roles) {
    if (role.state == RoleState::kReady) continue;
    late += "\n  " + role.name + ": ";
    if (!role.report.state.empty()) {
      late += role.report.state == "starting" ? "still starting" : describe(role.report);
    } else if (role.is_router() && role.published) {
      late += "no decode node is registered with it";
    } else {
      late += role.alive() ? "still starting" : "not started";
    }
  }
  return make_error(ErrorCode::kUnavailable, "not ready after " +
                                                 format_duration(options.ready_timeout) +
                                                 "; the logs are in " + options.run_dir + late);
}

Status Supervisor::State::keep_up() {
  Status first;
  for (const auto& [pid, status] : std::exchange(exited, {})) {
    for (Role& role : roles) {
      if (role.pid != pid) continue;
      Status ended = on_exit(role, status);
      if (first) first = std::move(ended);
    }
  }
  TANDEM_TRY(std::move(first));
  for (Role& role : roles) TANDEM_TRY(advance(role));
  return {};
}

Status Supervisor::State::bring_up() {
  const TimePoint deadline = clock.now() + options.ready_timeout;
  while (!stopping) {
    TANDEM_TRY(keep_up());
    if (all_settled() && !announced) {
      announced = true;
      if (callbacks.ready) callbacks.ready(readiness());
    }
    if (!announced && clock.now() > deadline) return fail(not_ready_in_time());
    wait_for_signal(all_settled() ? kIdleTick : kTick);
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

// SIGTERM, another one when there is hurry, and SIGKILL for what is left after the time for either
// or when there is to be none.
void Supervisor::State::stop_roles(bool routers) {
  const auto left = [&] {
    return std::any_of(roles.begin(), roles.end(), [&](const Role& role) {
      return role.is_router() == routers && role.alive();
    });
  };
  const auto signal_all = [&](int signal) {
    for (const Role& role : roles) {
      if (role.is_router() == routers && role.alive()) ::kill(role.pid, signal);
    }
  };
  // A router that drains would wait for our connections.
  for (Role& role : roles) role.fetcher.reset();
  signal_all(SIGTERM);
  // What never was ready has nothing to finish.
  const bool drains = std::any_of(roles.begin(), roles.end(), [&](const Role& role) {
    return role.is_router() == routers && role.was_ready;
  });
  TimePoint deadline = clock.now() + (drains ? drain_limit(routers) : Duration{}) + kAfterDrain;
  bool hurried = false;
  bool killed = false;
  while (left()) {
    if (haste != Haste::kDrain && !hurried) {  // a router then tells its clients that it goes
      signal_all(SIGTERM);
      deadline = std::min(deadline, clock.now() + kAfterDrain);
      hurried = true;
    }
    if (!killed && (haste == Haste::kKill || clock.now() > deadline)) {
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
  if (config.router.enabled) state_->add_role("router", "router", false);
  for (const auto& node : config.prefill) state_->add_node(node, "prefill");
  for (const auto& node : config.decode) state_->add_node(node, "decode");
}

Supervisor::~Supervisor() = default;

Result<int> Supervisor::run() {
  state_->write_state_file();  // before there is a role that could outlive this process
  const Status status = state_->bring_up();
  state_->stop_all();
  if (!status) return fail(status.error());
  return state_->interrupted_by;
}

void Supervisor::block_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace tandem::supervise
