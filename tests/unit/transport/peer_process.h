#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "common/base/piped_child.h"
#include "tests/unit/transport/process.h"

namespace tandem::transport::testing {

// A child process running peer.h; killed with its owner.
class PeerProcess {
 public:
  // `words`: the program and its arguments.
  PeerProcess(uint64_t generation, std::vector<std::string> words) : generation_(generation) {
    auto started = start_piped_child(std::move(words));
    EXPECT_TRUE(started) << started.error().detail;
    if (!started) return;
    pid_ = started->pid;
    in_ = std::move(started->in);
    out_ = std::move(started->out);
    address_ = from_hex(expect("address ")).value();
  }
  ~PeerProcess() { kill(SIGKILL); }

  void kill(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    if (signal != SIGKILL) return;
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  bool alive() const { return pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0; }
  void say(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(write(in_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // The rest of the next line that begins so; other lines (UCX's own messages) are passed over.
  std::string expect(const std::string& prefix, Duration limit = std::chrono::seconds(60)) {
    const TimePoint give_up = clock_.now() + limit;
    while (clock_.now() < give_up) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.starts_with(prefix)) return line.substr(prefix.size());
        continue;
      }
      pollfd wait{out_.get(), POLLIN, 0};
      if (poll(&wait, 1, 50) <= 0) continue;
      char chunk[4096];
      const ssize_t n = read(out_.get(), chunk, sizeof(chunk));
      if (n <= 0) break;
      buffer_.append(chunk, static_cast<size_t>(n));
    }
    ADD_FAILURE() << "the peer never said '" << prefix << "'";
    return {};
  }
  const std::string& address() const { return address_; }
  Generation generation() const { return Generation{generation_}; }
  pid_t pid() const { return pid_; }

 private:
  uint64_t generation_;
  pid_t pid_ = 0;
  Fd in_;
  Fd out_;
  std::string buffer_;
  std::string address_;
  SteadyClock clock_;
};

}  // namespace tandem::transport::testing
