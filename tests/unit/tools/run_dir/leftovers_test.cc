#include "tools/run_dir/leftovers.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <vector>

#include "common/base/fd.h"
#include "tests/support/temp_folder.h"
#include "tools/run_dir/run_dir.h"

namespace tandem::rundir {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kObedient = "echo; read line";
constexpr const char* kDeaf = "trap '' TERM; echo; read line; read line";

class Leftovers : public ::testing::Test {
 protected:
  ~Leftovers() override {
    for (const pid_t pid : children_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  // A process that has the command line of a role and does what the script says, until its input
  // ends. Its first line of output says that it has begun.
  pid_t start(const char* script, const std::string& run_dir, const std::string& config) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    EXPECT_EQ(::pipe2(in.data(), O_CLOEXEC) + ::pipe2(out.data(), O_CLOEXEC), 0);
    inputs_.emplace_back(in[1]);
    const Fd ours(out[0]);
    const Fd theirs(out[1]);
    const Fd input(in[0]);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(input.get(), STDIN_FILENO);
      ::dup2(theirs.get(), STDOUT_FILENO);
      ::execl("/bin/sh", "sh", "-c", script, "tandem-decode", "--config", config.c_str(),
              "--run-dir", run_dir.c_str(), "--name", "d0", nullptr);
      ::_exit(127);
    }
    children_.push_back(pid);
    char byte = 0;
    EXPECT_EQ(::read(ours.get(), &byte, 1), 1);
    return pid;
  }

  void write(std::vector<ProcessState> processes, int64_t stop_seconds = 60) {
    SupervisorState state;
    state.stop_seconds = stop_seconds;
    state.processes = std::move(processes);
    ASSERT_TRUE(write_state(folder_, state));
  }

  static ProcessState process(const std::string& name, pid_t pid) {
    return {.name = name, .role = "decode", .pid = pid, .state = "ready", .restarts = 0};
  }

  // The signal that ended a child.
  int end_of(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    std::erase(children_, pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

  testing::TempFolder temp_;
  const std::string folder_ = temp_.path().string();
  SteadyClock clock_;
  std::string config_ = folder_ + "/cluster.yaml";
  std::vector<pid_t> children_;
  std::vector<Fd> inputs_;
};

TEST_F(Leftovers, AreTheProcessesOfThisRunDirectoryOnly) {
  EXPECT_THAT(leftovers(folder_), IsEmpty()) << "no supervisor has been here";
  const pid_t ours = start(kObedient, folder_, config_);
  const pid_t elsewhere = start(kObedient, folder_ + "2", config_);
  write({process("d0", ours), process("d1", elsewhere), process("d2", ::getpid()), process("d3", 0),
         process("d4", 1)});
  EXPECT_THAT(leftovers(folder_),
              ElementsAre(AllOf(Field(&Leftover::name, "d0"), Field(&Leftover::pid, ours),
                                Field(&Leftover::config, config_))));
  ::kill(ours, SIGKILL);
  end_of(ours);
  EXPECT_THAT(leftovers(folder_), IsEmpty());
}

TEST_F(Leftovers, AreFoundByWhatTheyPublishedToo) {
  const pid_t pid = start(kObedient, folder_, config_);
  write({process("d0", 0)});  // its supervisor died before it had noted the start
  std::ofstream(folder_ + "/d0.json")
      << R"({"role":"decode","name":"d0","pid":)" << pid << R"(,"endpoints":{}})";
  EXPECT_THAT(leftovers(folder_), ElementsAre(Field(&Leftover::pid, pid)));
  write({process("d0", pid)});
  EXPECT_THAT(leftovers(folder_), ElementsAre(Field(&Leftover::pid, pid))) << "once";
}

TEST_F(Leftovers, BelongToAFileByWhateverPath) {
  std::ofstream(config_) << "a";
  std::ofstream(folder_ + "/other.yaml") << "a";
  std::filesystem::create_symlink(config_, folder_ + "/link.yaml");
  const std::string relative = std::filesystem::relative(config_).string();
  write({process("d0", start(kObedient, folder_, relative))});
  for (const std::string& path : {config_, relative, folder_ + "/link.yaml"}) {
    const Status same = check_leftovers(folder_, path);
    EXPECT_TRUE(same) << same.error().detail;
  }
  const Status other = check_leftovers(folder_, folder_ + "/other.yaml");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(other.error().detail,
              AllOf(HasSubstr("a cluster of " + relative), HasSubstr("d0 (process ")));
  std::filesystem::remove(config_);
  EXPECT_TRUE(check_leftovers(folder_, config_)) << "the file has gone since";
  EXPECT_FALSE(check_leftovers(folder_, folder_ + "/other.yaml"));
}

TEST_F(Leftovers, AreAskedToEndFirst) {
  const pid_t pid = start(kObedient, folder_, config_);
  write({process("d0", pid)});
  std::string said;
  ASSERT_TRUE(stop_leftovers(folder_, clock_, [&](const std::string& line) { said += line; }));
  EXPECT_EQ(end_of(pid), SIGTERM);
  EXPECT_THAT(said, AllOf(HasSubstr("d0 (process " + std::to_string(pid) + ")"),
                          Not(HasSubstr("killing"))));
}

TEST_F(Leftovers, AreNotGoneBeforeTheirProcessIs) {
  // What ends has no command line any more, like this one, which has another for its last second.
  const pid_t pid = start("trap 'exec sleep 1' TERM; echo; read line", folder_, config_);
  write({process("d0", pid)});
  ASSERT_TRUE(stop_leftovers(folder_, clock_, [](const std::string&) {}));
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), pid) << "it still runs";
  std::erase(children_, pid);
}

TEST_F(Leftovers, AreKilledWhenTheirTimeIsOver) {
  const pid_t deaf = start(kDeaf, folder_, config_);
  const pid_t obedient = start(kObedient, folder_, config_);
  write({process("d0", deaf), process("d1", obedient)}, 1);
  std::vector<std::string> said;
  ASSERT_TRUE(
      stop_leftovers(folder_, clock_, [&](const std::string& line) { said.push_back(line); }));
  EXPECT_EQ(end_of(deaf), SIGKILL);
  EXPECT_EQ(end_of(obedient), SIGTERM);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_THAT(said[1], AllOf(HasSubstr("killing d0"), Not(HasSubstr("d1"))));
}

}  // namespace
}  // namespace tandem::rundir
