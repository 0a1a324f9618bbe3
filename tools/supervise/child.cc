#include "tools/supervise/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/fd.h"

namespace tandem::supervise {
namespace {

constexpr int kExecFailed = 127;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec: async-signal-safe calls only, everything else was prepared before.
[[noreturn]] void become(const char* program, char* const* argv, char* const* envp, int log,
                         pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kExecFailed);  // it died before prctl
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execve(program, argv, envp);
  const char message[] = "cannot execute this role's program\n";
  if (::write(STDERR_FILENO, message, sizeof(message) - 1) < 0) ::_exit(kExecFailed);
  ::_exit(kExecFailed);
}

}  // namespace

Result<pid_t> spawn(const ChildSpec& spec) {
  if (::access(spec.program.c_str(), X_OK) != 0) {
    return fail(ErrorCode::kNotFound, spec.program + ": " + std::strerror(errno));
  }
  const Fd log(::open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log) {
    return fail(ErrorCode::kIo, "cannot write " + spec.log_path + ": " + std::strerror(errno));
  }
  std::vector<std::string> arguments{spec.program};
  arguments.insert(arguments.end(), spec.arguments.begin(), spec.arguments.end());
  std::vector<std::string> variables;
  for (const auto& [name, value] : spec.environment) {
    std::string variable = name;
    variable += '=';
    variable += value;
    variables.push_back(std::move(variable));
  }
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return fail(ErrorCode::kResourceExhausted, std::string("cannot fork: ") + std::strerror(errno));
  }
  if (pid == 0) become(spec.program.c_str(), argv.data(), envp.data(), log.get(), parent);
  return pid;
}

std::string describe_exit(int wait_status) {
  if (WIFEXITED(wait_status)) return "exit code " + std::to_string(WEXITSTATUS(wait_status));
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  }
  return "status " + std::to_string(wait_status);
}

uint64_t log_size(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

std::string last_words(const std::string& path, uint64_t from, const std::string& program,
                       size_t lines) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  constexpr uint64_t kWindow = 16384;
  const uint64_t size = log_size(path);
  if (from > size) from = 0;  // it was rotated
  in.seekg(static_cast<std::streamoff>(std::max(from, size - std::min(size, kWindow))));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::string head = program + ": ";
  for (size_t at = text.rfind(head); at != std::string::npos; at = text.rfind(head, at - 1)) {
    if (at == 0 || text[at - 1] == '\n') return text.substr(at);
  }
  if (lines == 0) return {};
  size_t at = text.size();
  for (size_t found = 0; at > 0; --at) {
    if (text[at - 1] == '\n' && at != text.size() && ++found == lines) break;
  }
  return text.substr(at);
}

}  // namespace tandem::supervise
