#include "common/base/fd.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tandem {

void FdTraits::close(int fd) noexcept {
  if (::close(fd) != 0) std::fprintf(stderr, "close(%d): %s\n", fd, std::strerror(errno));
}

}  // namespace tandem
