#include "tools/cli/line_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string_view>

namespace tandem::cli {
namespace {

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe2(ends_, O_NONBLOCK), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    close_writer();
  }
  void write(std::string_view text) const {
    ASSERT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_writer() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  [[nodiscard]] int reader() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
};

TEST(LineReader, GivesLinesAndTheLastOneWithoutItsEnd) {
  Pipe input;
  input.write("one\r\n\ntwo");
  input.close_writer();
  LineReader reader(input.reader(), -1);
  std::string line;
  for (const char* expected : {"one", "", "two"}) {
    ASSERT_EQ(reader.read(line), LineReader::Outcome::kLine);
    EXPECT_EQ(line, expected);
  }
  EXPECT_EQ(reader.read(line), LineReader::Outcome::kEnd);
  EXPECT_EQ(reader.read(line), LineReader::Outcome::kEnd);
}

TEST(LineReader, BeingWokenDropsTheLineBegunAndNothingElse) {
  Pipe input, wake;
  LineReader reader(input.reader(), wake.reader());
  std::string line;
  input.write("one\nhalf");
  ASSERT_EQ(reader.read(line), LineReader::Outcome::kLine);  // has read "half", too
  wake.write("!!");
  EXPECT_EQ(reader.read(line), LineReader::Outcome::kInterrupted);
  input.write("two\n");
  EXPECT_EQ(reader.read(line), LineReader::Outcome::kLine);
  EXPECT_EQ(line, "two");
  input.close_writer();
  EXPECT_EQ(reader.read(line), LineReader::Outcome::kEnd);
}

}  // namespace
}  // namespace tandem::cli
