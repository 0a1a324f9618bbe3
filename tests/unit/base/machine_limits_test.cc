#include "common/base/machine_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

// /proc and /sys of a machine that is made up.
class MachineLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tandem-memory-XXXXXX";
    root_ = mkdtemp(pattern);
    write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 5 kB\nSwapTotal:       1024 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  [[nodiscard]] uint64_t kib() const { return machine_memory(root_.string()) >> 10; }
  std::filesystem::path root_;
};

TEST_F(MachineLimits, MemoryIsRamAndSwap) { EXPECT_EQ(kib(), 16384U + 1024U); }

TEST_F(MachineLimits, MemoryIsWhatTheControlGroupsAllow) {
  write("proc/self/cgroup", "0::/system.slice/tandem.service\n");
  write("sys/fs/cgroup/system.slice/tandem.service/memory.max", "max\n");
  EXPECT_EQ(kib(), 16384U + 1024U);
  write("sys/fs/cgroup/system.slice/memory.max", "8388608\n");
  EXPECT_EQ(kib(), 8192U + 1024U);
  write("sys/fs/cgroup/system.slice/tandem.service/memory.max", "4194304\n");
  EXPECT_EQ(kib(), 4096U + 1024U);
}

TEST_F(MachineLimits, MemoryIsWhatAContainerAllows) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "2097152\n");
  EXPECT_EQ(kib(), 2048U + 1024U);
}

TEST_F(MachineLimits, MemoryOfTheFirstVersionOfControlGroups) {
  write("proc/self/cgroup", "4:memory:/docker/1\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
  EXPECT_EQ(kib(), 2048U + 1024U);
  // What stands there when there is no limit.
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(kib(), 16384U + 1024U);
}

TEST_F(MachineLimits, MemoryIsUnknownWhereNothingTells) {
  EXPECT_EQ(machine_memory((root_ / "nowhere").string()), 0U);
  EXPECT_GT(machine_memory(), uint64_t{1} << 28);  // of this machine
}

TEST_F(MachineLimits, ThreadsAreLimitedByTheControlGroupsToo) {
  const uint64_t of_user = machine_threads(root_.string());
  write("proc/self/cgroup", "0::/pod/one\n");
  write("sys/fs/cgroup/pod/pids.max", "7\n");
  write("sys/fs/cgroup/pod/one/pids.max", "max\n");
  EXPECT_EQ(machine_threads(root_.string()), 7U);
  write("sys/fs/cgroup/pod/one/pids.max", "5\n");
  EXPECT_EQ(machine_threads(root_.string()), 5U);
  write("proc/self/cgroup", "");
  EXPECT_EQ(machine_threads(root_.string()), of_user);
}

}  // namespace
}  // namespace tandem
