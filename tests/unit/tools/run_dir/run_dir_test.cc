#include "tools/run_dir/run_dir.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "common/base/run_file.h"
#include "tests/support/temp_folder.h"

namespace tandem::rundir {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunDir : public ::testing::Test {
 protected:
  testing::TempFolder temp_;
  const std::string folder_ = temp_.path().string();
};

TEST_F(RunDir, IsWhatTheFlagSaysElseTheUsersElseOneOfTheWorkingDirectory) {
  EXPECT_EQ(resolve_run_dir("/a/b/../run/", {}), "/a/run");
  EXPECT_EQ(resolve_run_dir("x", {}), (fs::current_path() / "x").string());
  EXPECT_EQ(resolve_run_dir("", {{"XDG_RUNTIME_DIR", folder_}}), folder_ + "/tandem");
  const std::string here = (fs::current_path() / "run").string();
  EXPECT_EQ(resolve_run_dir("", {}), here);
  EXPECT_EQ(resolve_run_dir("", {{"XDG_RUNTIME_DIR", folder_ + "/absent"}}), here);
}

TEST_F(RunDir, IsHeldByOneProcessUntilItEnds) {
  const std::string run_dir = folder_ + "/made/by/acquire";
  EXPECT_EQ(lock_holder(run_dir), std::nullopt);
  {
    const auto held = RunDirLock::acquire(run_dir);
    ASSERT_TRUE(held) << held.error().detail;
    EXPECT_EQ(lock_holder(run_dir), ::getpid());
    const auto second = RunDirLock::acquire(run_dir);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(second.error().detail, HasSubstr("process " + std::to_string(::getpid())));
  }
  EXPECT_EQ(lock_holder(run_dir), std::nullopt);
}

TEST_F(RunDir, ReadsBackWhatItsSupervisorWrote) {
  SupervisorState written;
  written.config = "deploy/a \"b\".yaml";
  written.url = "http://127.0.0.1:8000";
  written.stop_seconds = 70;
  written.processes = {
      {.name = "router", .role = "router", .pid = 10, .state = "ready", .restarts = 0},
      {.name = "d0", .role = "decode", .pid = 0, .state = "restarting", .restarts = 3}};
  ASSERT_TRUE(write_state(folder_, written));
  const auto read = read_state(folder_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->config, written.config);
  EXPECT_EQ(read->url, written.url);
  EXPECT_EQ(read->stop_seconds, 70);
  EXPECT_TRUE(read->has_router());
  ASSERT_EQ(read->processes.size(), 2U);
  EXPECT_EQ(read->processes[0].pid, 10);
  EXPECT_EQ(read->processes[1].name, "d0");
  EXPECT_EQ(read->processes[1].role, "decode");
  EXPECT_EQ(read->processes[1].state, "restarting");
  EXPECT_EQ(read->processes[1].restarts, 3U);
}

TEST_F(RunDir, TakesNothingFromFilesThatAreNotItsOwn) {
  EXPECT_FALSE(read_state(folder_));
  EXPECT_FALSE(read_endpoints(folder_, "router"));
  for (const char* text : {"", "{", "[]", "3", "{\"pid\": \"x\"}", "{\"endpoints\": []}"}) {
    std::ofstream(folder_ + "/router.json") << text;
    EXPECT_FALSE(read_endpoints(folder_, "router")) << text;
  }
  std::ofstream(folder_ + "/supervisor.json")
      << R"({"config": 3, "processes": [1, {"name": ["x"], "pid": "7"}]})";
  const auto state = read_state(folder_);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->config, "");
  ASSERT_EQ(state->processes.size(), 1U);
  EXPECT_EQ(state->processes[0].name, "");
  EXPECT_EQ(state->processes[0].pid, 0);
}

TEST_F(RunDir, ReadsWhatRolesPublish) {
  ASSERT_TRUE(publish_endpoints(folder_, "decode", "d0", {{"metrics", "127.0.0.1:40125"}}));
  const auto read = read_endpoints(folder_, "d0");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->role, "decode");
  EXPECT_EQ(read->name, "d0");
  EXPECT_EQ(read->pid, ::getpid());
  EXPECT_EQ(read->endpoints.at("metrics"), "127.0.0.1:40125");
}

TEST_F(RunDir, TellsWhoRunsAFile) {
  const std::string config = folder_ + "/a.yaml";
  std::ofstream(config) << "a";
  std::ofstream(folder_ + "/b.yaml") << "a";
  SupervisorState state;
  state.config = fs::relative(config).string();  // counts from where the holder was started
  ASSERT_TRUE(write_state(folder_, state));
  EXPECT_EQ(supervisor_of(folder_, config), std::nullopt) << "nobody holds it";
  const auto held = RunDirLock::acquire(folder_);
  ASSERT_TRUE(held);
  EXPECT_EQ(supervisor_of(folder_, config), ::getpid());
  EXPECT_EQ(supervisor_of(folder_, folder_ + "/b.yaml"), std::nullopt);
  EXPECT_EQ(supervisor_of(folder_, folder_ + "/absent.yaml"), std::nullopt);
  EXPECT_EQ(config_path_of(folder_, ::getpid()), config);
}

}  // namespace
}  // namespace tandem::rundir
