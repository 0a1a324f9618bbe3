#include "tools/supervise/detach.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "common/base/exit.h"
#include "common/base/process_limits.h"

namespace tandem::supervise {
namespace {

constexpr int kChildPoll = 50;  // ms, while only the child's end is waited for

// What ends the pipe: this byte, which no text holds, and the exit code.
constexpr char kRelease = '\0';

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody listens any more
    text.remove_prefix(static_cast<size_t>(written));
  }
}

class Follower {
 public:
  Follower(Fd pipe, Fd signals, pid_t child)
      : pipe_(std::move(pipe)), signals_(std::move(signals)), child_(child) {}

  int run() {
    while (pipe_) wait();
    if (first_signal_ == 0 && code_ >= 0) return code_;
    int status = 0;
    while (::waitpid(child_, &status, first_signal_ == 0 ? 0 : WNOHANG) == 0) wait();
    return first_signal_ == 0 ? kExitFailure : exit_code_of_signal(first_signal_);
  }

 private:
  void wait() {
    std::array<pollfd, 2> from{pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = pipe_.get(), .events = POLLIN, .revents = 0}};
    if (::poll(from.data(), from.size(), pipe_ ? -1 : kChildPoll) <= 0) return;
    if (from[0].revents != 0) pass_on();
    if (from[1].revents != 0) print();
  }

  void pass_on() {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return;
    const int signal = static_cast<int>(info.ssi_signo);
    if (first_signal_ == 0) first_signal_ = signal;
    ::kill(child_, signal == SIGHUP ? SIGTERM : signal);
  }

  void print() {
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(pipe_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
      pipe_ = Fd();
      return;
    }
    std::string_view text(buffer.data(), static_cast<size_t>(got));
    if (released_) {
      code_ = static_cast<unsigned char>(text.front());
      return;
    }
    const size_t end = text.find(kRelease);
    write_all(STDERR_FILENO, text.substr(0, end));
    if (end == std::string_view::npos) return;
    released_ = true;
    if (end + 1 < text.size()) code_ = static_cast<unsigned char>(text[end + 1]);
  }

  Fd pipe_;
  const Fd signals_;
  const pid_t child_;
  int first_signal_ = 0;
  bool released_ = false;
  int code_ = -1;
};

}  // namespace

void Voice::say(const std::string& line) const {
  write_all(pipe_ ? pipe_.get() : STDERR_FILENO, line + "\n");
}

void Voice::release(int exit_code) {
  if (!pipe_) return;
  const std::array<char, 2> end{kRelease, static_cast<char>(exit_code)};
  write_all(pipe_.get(), std::string_view(end.data(), end.size()));
  pipe_ = Fd();
}

Result<Fd> end_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  if (has_terminal()) ::sigaddset(&set, SIGHUP);
  Fd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (signals) return signals;
  return fail(ErrorCode::kIo, std::string("no descriptor for signals: ") + std::strerror(errno));
}

int follow(Fd pipe, Fd signals, pid_t child) {
  return Follower(std::move(pipe), std::move(signals), child).run();
}

}  // namespace tandem::supervise
