#include "tools/run_dir/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/run_file.h"
#include "tools/run_dir/json_members.h"

namespace tandem::rundir {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

std::string lock_path(const std::string& run_dir) { return run_dir + "/supervisor.lock"; }
std::string state_path(const std::string& run_dir) { return run_dir + "/supervisor.json"; }

std::optional<json::object> read_object(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  json::error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) return std::nullopt;
  return std::move(value.get_object());
}

constexpr const char* kChooseAnother =
    "; choose a folder that you may write to with --run-dir (without it: $XDG_RUNTIME_DIR/tandem "
    "where there is such a folder, else ./run of the working directory)";

}  // namespace

std::string default_run_dir(const Environment& environment) {
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  std::error_code error;
  if (runtime != environment.end() && fs::is_directory(runtime->second, error)) {
    return runtime->second + "/tandem";
  }
  const fs::path here = fs::absolute("run", error);
  return error ? std::string("run") : here.string();
}

std::string resolve_run_dir(const std::string& flag, const Environment& environment) {
  if (flag.empty()) return default_run_dir(environment);
  std::error_code error;
  const fs::path path = fs::absolute(flag, error).lexically_normal();
  if (error) return flag;
  return path.has_filename() ? path.string() : path.parent_path().string();  // "run/"
}

Result<RunDirLock> RunDirLock::acquire(const std::string& run_dir) {
  std::error_code error;
  fs::create_directories(run_dir, error);
  if (error) {
    return fail(ErrorCode::kIo,
                "cannot create " + run_dir + ": " + error.message() + kChooseAnother);
  }
  Fd fd(::open(lock_path(run_dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) {
    return fail(ErrorCode::kIo,
                "cannot open " + lock_path(run_dir) + ": " + std::strerror(errno) + kChooseAnother);
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    const std::optional<pid_t> holder = lock_holder(run_dir);
    return fail(ErrorCode::kUnavailable,
                "a cluster is already running from " + run_dir + " (process " +
                    (holder ? std::to_string(*holder) : std::string("unknown")) +
                    "); stop it with `tandem down`, or choose another folder with --run-dir");
  }
  RunDirLock lock(std::move(fd));
  TANDEM_TRY(lock.write_pid());
  return lock;
}

Status RunDirLock::write_pid() const {
  const std::string text = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd_.get(), 0) != 0 ||
      ::pwrite(fd_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return fail(ErrorCode::kIo, std::string("cannot write the lock file: ") + std::strerror(errno));
  }
  return {};
}

std::optional<pid_t> lock_holder(const std::string& run_dir) {
  const Fd fd(::open(lock_path(run_dir).c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return std::nullopt;
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return std::nullopt;  // nobody has it
  char text[32] = {};
  if (::pread(fd.get(), text, sizeof(text) - 1, 0) <= 0) return std::nullopt;
  const long pid = std::strtol(text, nullptr, 10);
  if (pid <= 1) return std::nullopt;
  return static_cast<pid_t>(pid);
}

std::optional<RoleEndpoints> read_endpoints(const std::string& run_dir, const std::string& name) {
  const auto object = read_object(run_dir + "/" + name + ".json");
  if (!object) return std::nullopt;
  RoleEndpoints role;
  role.role = text_of(*object, "role");
  role.name = text_of(*object, "name");
  role.pid = static_cast<pid_t>(number_of(*object, "pid"));
  const json::value* endpoints = object->if_contains("endpoints");
  if (endpoints == nullptr || !endpoints->is_object() || role.pid <= 0) return std::nullopt;
  for (const auto& [kind, address] : endpoints->get_object()) {
    if (address.is_string()) role.endpoints[std::string(kind)] = std::string(address.get_string());
  }
  return role;
}

bool SupervisorState::has_router() const {
  return std::any_of(processes.begin(), processes.end(),
                     [](const ProcessState& process) { return process.role == "router"; });
}

Status write_state(const std::string& run_dir, const SupervisorState& state) {
  json::array processes;
  for (const ProcessState& process : state.processes) {
    processes.push_back(json::object{{"name", process.name},
                                     {"role", process.role},
                                     {"pid", process.pid},
                                     {"state", process.state},
                                     {"restarts", process.restarts}});
  }
  const json::object object{{"pid", ::getpid()},
                            {"config", state.config},
                            {"url", state.url},
                            {"stop_seconds", state.stop_seconds},
                            {"processes", std::move(processes)}};
  return write_file_atomically(state_path(run_dir), json::serialize(object) + "\n");
}

std::optional<SupervisorState> read_state(const std::string& run_dir) {
  const auto object = read_object(state_path(run_dir));
  if (!object) return std::nullopt;
  SupervisorState state;
  state.config = text_of(*object, "config");
  state.url = text_of(*object, "url");
  state.stop_seconds = number_of(*object, "stop_seconds");
  const json::value* processes = object->if_contains("processes");
  if (processes == nullptr || !processes->is_array()) return state;
  for (const json::value& value : processes->get_array()) {
    if (!value.is_object()) continue;
    const json::object& process = value.get_object();
    state.processes.push_back({.name = text_of(process, "name"),
                               .role = text_of(process, "role"),
                               .pid = static_cast<pid_t>(number_of(process, "pid")),
                               .state = text_of(process, "state"),
                               .restarts = static_cast<uint32_t>(number_of(process, "restarts"))});
  }
  return state;
}

std::optional<pid_t> supervisor_of(const std::string& run_dir, const std::string& config_path) {
  const auto holder = lock_holder(run_dir);
  const auto state = read_state(run_dir);
  if (!holder || !state) return {};
  // Its path counts from where it was started.
  const std::filesystem::path folder = "/proc/" + std::to_string(*holder) + "/cwd";
  std::error_code error;
  const bool same = std::filesystem::equivalent(folder / state->config, config_path, error);
  return same && !error ? holder : std::nullopt;
}

std::string config_path_of(const std::string& run_dir, pid_t holder) {
  const auto state = read_state(run_dir);
  if (!state || state->config.empty()) return {};
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/" + std::to_string(holder) + "/cwd", error);
  return error ? state->config : (folder / state->config).lexically_normal().string();
}

}  // namespace tandem::rundir
