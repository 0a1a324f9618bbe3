#include "tools/cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace tandem::cli {

bool drain(int fd) {
  bool any = false;
  char bytes[64];
  while (::read(fd, bytes, sizeof(bytes)) > 0) any = true;
  return any;
}

// Waits until there is something to read; whether it was for `wake_fd_`.
bool LineReader::woken() {
  if (wake_fd_ < 0) return false;
  pollfd waited[] = {{.fd = fd_, .events = POLLIN, .revents = 0},
                     {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
  while (::poll(waited, 2, -1) < 0 && errno == EINTR) {
  }
  return waited[1].revents != 0 && drain(wake_fd_);
}

LineReader::Outcome LineReader::read(std::string& line) {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Outcome::kLine;
    }
    if (ended_) {
      if (buffer_.empty()) return Outcome::kEnd;
      line.swap(buffer_);
      buffer_.clear();
      return Outcome::kLine;
    }
    if (woken()) {
      buffer_.clear();
      return Outcome::kInterrupted;
    }
    char bytes[4096];
    const ssize_t got = ::read(fd_, bytes, sizeof(bytes));
    if (got > 0) {
      buffer_.append(bytes, static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      ended_ = true;  // a terminal that is gone reads as an error
    }
  }
}

}  // namespace tandem::cli
