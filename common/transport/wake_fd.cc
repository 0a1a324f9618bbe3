#include "common/transport/wake_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tandem::transport {

Result<WakeFd> WakeFd::create() {
  WakeFd result;
  result.fd_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!result.fd_) {
    return fail(ErrorCode::kIo,
                "cannot create an event descriptor: " + std::string(strerror(errno)));
  }
  return result;
}

void WakeFd::wake() const {
  const uint64_t one = 1;
  // A full counter already wakes.
  [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof(one));
}

void WakeFd::drain() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_.get(), &count, sizeof(count));
}

}  // namespace tandem::transport
