#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "tests/unit/transport/process.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace tandem::transport::testing {

// A child process running peer.h; killed with its owner.
class PeerProcess {
 public:
  // `words`: the program and its arguments.
  PeerProcess(uint64_t generation, std::vector<std::string> words) : generation_(generation) {
    int to_child[2];
    int from_child[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_child, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], 1);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    in_ = Fd(to_child[1]);
    out_ = Fd(from_child[0]);
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
