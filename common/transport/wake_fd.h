#pragma once

#include "common/base/fd.h"
#include "common/base/result.h"

namespace tandem::transport {

// What a transport's thread polls beside its sockets, so that other threads can end its nap.
class WakeFd {
 public:
  [[nodiscard]] static Result<WakeFd> create();
  WakeFd() = default;

  // Any thread. Several calls before a drain() wake once.
  void wake() const;
  // The polling thread, once fd() is readable.
  void drain() const;
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

}  // namespace tandem::transport
