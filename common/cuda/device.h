#pragma once

#include "common/base/result.h"
#include "common/cuda/device_info.h"

namespace tandem::cuda {

// A card that this thread works on. open() checks everything that can be known before any work:
// driver, index, architecture; makes the context and makes the device current on the calling
// thread, which is the device's thread from then on.
class Device {
 public:
  [[nodiscard]] static Result<Device> open(int index);

  [[nodiscard]] const DeviceInfo& info() const { return info_; }
  // Right now, other processes' use included.
  struct Memory {
    size_t free = 0;
    size_t total = 0;
  };
  [[nodiscard]] Result<Memory> memory() const;
  // Makes it current on another thread (a transport's, say).
  [[nodiscard]] Status make_current() const;

 private:
  explicit Device(DeviceInfo info) : info_(std::move(info)) {}
  DeviceInfo info_;
};

}  // namespace tandem::cuda
