#include "common/base/run_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace tandem {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class RunFile : public testing::Test {
 protected:
  RunFile() : folder_(testing::TempDir() + "run_file_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~RunFile() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_;
};

TEST_F(RunFile, PublishesOneJsonObjectAndLeavesNoPartBehind) {
  ASSERT_TRUE(publish_endpoints(folder_, "router", "router",
                                {{"http", "127.0.0.1:8000"}, {"control", "127.0.0.1:7070"}}));
  EXPECT_EQ(read(folder_ / "router.json"),
            "{\"role\":\"router\",\"name\":\"router\",\"pid\":" + std::to_string(::getpid()) +
                ",\"endpoints\":{\"control\":\"127.0.0.1:7070\",\"http\":\"127.0.0.1:8000\"}}\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(RunFile, ReplacesAnOlderFile) {
  ASSERT_TRUE(write_file_atomically(folder_ / "x", "a long first content"));
  ASSERT_TRUE(write_file_atomically(folder_ / "x", "short"));
  EXPECT_EQ(read(folder_ / "x"), "short");
}

TEST_F(RunFile, NamesThePathThatCannotBeWritten) {
  const Status status = write_file_atomically(folder_ / "absent" / "x", "y");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_NE(status.error().detail.find("absent/x"), std::string::npos);
}

TEST_F(RunFile, AFailureLeavesNoPartBehind) {
  std::filesystem::create_directories(folder_ / "x" / "taken");  // cannot be replaced by a file
  ASSERT_FALSE(write_file_atomically(folder_ / "x", "y"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

}  // namespace
}  // namespace tandem
