#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/base/result.h"

namespace tandem::cuda {

// Turns what a CUDA call returned into a Status. The error names the call, the calling thread's
// device, CUDA's words and what to do about it:
//   kResourceExhausted  out of memory (the card's own figures are added)
//   kUnavailable        no driver, no device, device held exclusively by others
//   kUnsupported        driver or card too old for this build
//   kDeviceLost         sticky: the context is gone, every later call fails; fail what is running
//                       over to other nodes and restart the process
//   kInternal           anything else: a wrong argument of ours
[[nodiscard]] Status cuda_status(cudaError_t error, const char* call,
                                 std::source_location location = std::source_location::current());

// Whether the error leaves the process without a usable context.
[[nodiscard]] bool is_sticky(cudaError_t error);

// For destructors: says on standard error what could not be freed, and goes on. Silent when the
// process is ending or the context is gone anyway.
void report_failure(cudaError_t error, const char* call) noexcept;

// Makes a device current on this thread for as long as it lives. For threads that serve several
// devices; a device thread sets its own once.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace tandem::cuda

// TANDEM_CUDA_TRY(cudaMalloc(&p, n)); propagates a failure as an Error.
#define TANDEM_CUDA_TRY(call) TANDEM_TRY(::tandem::cuda::cuda_status((call), #call))
