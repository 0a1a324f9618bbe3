#pragma once

#include "common/base/unique_handle.h"

namespace tandem {

struct FdTraits {
  using Handle = int;
  static Handle invalid() { return -1; }
  static void close(Handle fd) noexcept;
};
using Fd = UniqueHandle<FdTraits>;

}  // namespace tandem
