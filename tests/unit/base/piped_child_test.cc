#include "common/base/piped_child.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace tandem {
namespace {

std::string read_all(const Fd& fd) {
  std::string text;
  char chunk[256];
  for (ssize_t n = 0; (n = read(fd.get(), chunk, sizeof(chunk))) > 0;) {
    text.append(chunk, static_cast<size_t>(n));
  }
  return text;
}

int status_of(const PipedChild& child) {
  int status = 0;
  EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
  return status;
}

TEST(PipedChild, ReadsWhatWeWriteUntilWeCloseAndAnswers) {
  auto child = start_piped_child({"cat"}).value();
  ASSERT_EQ(write(child.in.get(), "words\n", 6), 6);
  child.in.reset();
  EXPECT_EQ(read_all(child.out), "words\n");
  EXPECT_EQ(status_of(child), 0);
}

TEST(PipedChild, GetsOurEnvironmentWithWhatWasNamedInPlace) {
  ASSERT_EQ(setenv("TANDEM_TEST_KEPT", "kept", 1), 0);
  ASSERT_EQ(setenv("TANDEM_TEST_NEW", "old", 1), 0);
  const auto child = start_piped_child({"sh", "-c",
                                        "echo $TANDEM_TEST_KEPT; env | grep -c _NEW=; "
                                        "echo $TANDEM_TEST_NEW"},
                                       {"TANDEM_TEST_NEW=a=b"})
                         .value();
  EXPECT_EQ(read_all(child.out), "kept\n1\na=b\n");
  EXPECT_EQ(status_of(child), 0);
}

TEST(PipedChild, AProgramThatIsNotThereIsAnErrorNamingIt) {
  const auto child = start_piped_child({"/nowhere/at-all"});
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().code, ErrorCode::kIo);
  EXPECT_NE(child.error().detail.find("/nowhere/at-all"), std::string::npos);
}

}  // namespace
}  // namespace tandem
