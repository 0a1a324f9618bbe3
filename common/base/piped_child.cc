#include "common/base/piped_child.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace tandem {
namespace {

struct Pipe {
  Fd read;
  Fd write;
};

Result<Pipe> open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) == 0) return Pipe{Fd(ends[0]), Fd(ends[1])};
  return fail(ErrorCode::kIo, "no pipe to a child process: " + std::string(std::strerror(errno)));
}

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

Result<PipedChild> start_piped_child(std::vector<std::string> words,
                                     const std::vector<std::string>& environment) {
  TANDEM_ASSIGN(Pipe to, open_pipe());
  TANDEM_ASSIGN(Pipe from, open_pipe());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (const std::string& entry : environment) env.push_back(const_cast<char*>(entry.data()));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const auto same = [&](const std::string& e) { return name_of(e) == name_of(*entry); };
    if (std::ranges::none_of(environment, same)) env.push_back(*entry);
  }
  env.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from.write.get(), STDOUT_FILENO);
  PipedChild child{.pid = 0, .in = std::move(to.write), .out = std::move(from.read)};
  const int error = posix_spawnp(&child.pid, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return child;
  return fail(ErrorCode::kIo, "cannot start " + words[0] + ": " + std::strerror(error));
}

}  // namespace tandem
