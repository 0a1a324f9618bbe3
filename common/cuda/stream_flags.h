#pragma once

#include <cstdint>

#include "common/cuda/memory.h"
#include "common/cuda/stream.h"

namespace tandem::cuda {

// Words of pinned memory that streams write once they get there: the host sees that work is done
// without a call into the driver (a query of an event takes 1.5 us). They say nothing of errors,
// so who waits for one still asks an event now and then.
class StreamFlags {
 public:
  // All zero. On the current device.
  [[nodiscard]] static Result<StreamFlags> create(size_t count);
  StreamFlags() = default;

  // Where the driver has no such writes, write() does nothing and events remain.
  [[nodiscard]] bool usable() const { return write_ != nullptr; }
  [[nodiscard]] Status write(const Stream& stream, size_t index, uint32_t value) const;
  [[nodiscard]] uint32_t read(size_t index) const;

 private:
  using Write = int (*)(void*, unsigned long long, uint32_t, unsigned);
  PinnedBuffer words_;
  Write write_ = nullptr;
};

}  // namespace tandem::cuda
