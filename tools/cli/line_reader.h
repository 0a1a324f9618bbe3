#pragma once

#include <cstdint>
#include <string>

namespace tandem::cli {

// Lines of a file descriptor, until something else wakes the reader.
class LineReader {
 public:
  // `wake_fd` may be -1; the reader takes what it holds. Both stay the caller's.
  LineReader(int fd, int wake_fd) : fd_(fd), wake_fd_(wake_fd) {}

  enum class Outcome : uint8_t { kLine, kEnd, kInterrupted };
  // Without its line end. A last line without one counts. kInterrupted when `wake_fd` has become
  // readable: what was read of the line is dropped.
  [[nodiscard]] Outcome read(std::string& line);

 private:
  [[nodiscard]] bool woken();

  const int fd_;
  const int wake_fd_;
  std::string buffer_;
  bool ended_ = false;
};

// Takes what a non-blocking descriptor holds; whether that was anything.
bool drain(int fd);

}  // namespace tandem::cli
