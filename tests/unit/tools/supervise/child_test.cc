#include "tools/supervise/child.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <fstream>
#include <string>

#include "tests/support/temp_folder.h"

namespace tandem::supervise {
namespace {

using ::testing::HasSubstr;

class Child : public ::testing::Test {
 protected:
  void log(const std::string& text) { std::ofstream(log_, std::ios::app) << text; }
  std::string words(size_t lines, uint64_t from = 0) {
    return last_words(log_, from, "tandem-decode", lines);
  }

  int wait(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }

  testing::TempFolder temp_;
  const std::string folder_ = temp_.path().string();
  const std::string log_ = folder_ + "/role.log";
};

TEST_F(Child, LastWordsBeginWhereTheProgramSaysWhyItEnds) {
  EXPECT_EQ(words(8), "") << "no log";
  log("{\"event\":\"listening\"}\n");
  EXPECT_EQ(words(0), "");
  log("tandem-decode: an older reason\nmore of it\n");
  log("{\"note\":\"tandem-decode: within a line\"}\n");
  EXPECT_EQ(words(8),
            "tandem-decode: an older reason\nmore of it\n"
            "{\"note\":\"tandem-decode: within a line\"}\n");
  log("tandem-decode: the reason (kv.memory)\n");
  EXPECT_EQ(words(0), "tandem-decode: the reason (kv.memory)\n");
  EXPECT_EQ(words(8), words(0));
}

TEST_F(Child, LastWordsOfAProgramThatCouldNotSayAnyAreItsLastLines) {
  log("one\ntwo\nthree\n");
  EXPECT_EQ(words(2), "two\nthree\n");
  EXPECT_EQ(words(3), "one\ntwo\nthree\n");
  EXPECT_EQ(words(30), "one\ntwo\nthree\n");
  EXPECT_EQ(words(0), "");
  log("an unfinished");
  EXPECT_EQ(words(2), "three\nan unfinished");
}

TEST_F(Child, LastWordsAreOfThisProcessAlone) {
  log("tandem-decode: why the one before ended\n");
  const uint64_t from = log_size(log_);
  EXPECT_EQ(words(8, from), "");
  log("begins\n");
  EXPECT_EQ(words(8, from), "begins\n");
  EXPECT_EQ(words(0, from), "");
  std::ofstream(log_) << "new\n";  // rotated: shorter than where this process began
  EXPECT_EQ(words(8, from), "new\n");
}

TEST_F(Child, LastWordsAreFewOfALongLog) {
  log("tandem-decode: long ago\n");
  for (int i = 0; i < 2000; ++i) log("a line of about thirty bytes..\n");
  EXPECT_EQ(words(1), "a line of about thirty bytes..\n");
  EXPECT_EQ(words(0), "") << "too far back to be the reason";
}

TEST_F(Child, GetsItsArgumentsEnvironmentAndLog) {
  ChildSpec spec;
  spec.program = "/bin/sh";
  spec.arguments = {"-c", "echo \"$0 $1 $WORD\"; echo wrong >&2; exit 3", "a b", "c"};
  spec.environment = {{"WORD", "from here"}};
  spec.log_path = log_;
  log("before\n");
  const auto pid = spawn(spec);
  ASSERT_TRUE(pid) << pid.error().detail;
  EXPECT_EQ(describe_exit(wait(*pid)), "exit code 3");
  EXPECT_EQ(words(8), "before\na b c from here\nwrong\n");
}

TEST_F(Child, SaysWhichSignalEndedIt) {
  ChildSpec spec;
  spec.program = "/bin/sh";
  spec.arguments = {"-c", "kill -9 $$"};
  spec.log_path = log_;
  const auto pid = spawn(spec);
  ASSERT_TRUE(pid) << pid.error().detail;
  EXPECT_EQ(describe_exit(wait(*pid)), "signal 9 (Killed)");
}

TEST_F(Child, ThatCannotStartIsNamed) {
  ChildSpec spec;
  spec.program = folder_ + "/absent";
  spec.log_path = log_;
  auto failed = spawn(spec);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().detail, HasSubstr(spec.program));
  spec.program = "/bin/sh";
  spec.log_path = folder_ + "/absent/role.log";
  failed = spawn(spec);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().detail, HasSubstr(spec.log_path));
}

}  // namespace
}  // namespace tandem::supervise
