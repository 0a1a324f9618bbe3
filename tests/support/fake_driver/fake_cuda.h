#pragma once

// The CUDA runtime and page_copy(), as far as transports between GPUs use them, in host memory:
// this test program defines them itself, so that none of the real ones is linked. A copy in a
// stream happens late, when somebody waits for the stream or has asked for it a few times. Kernels
// and events end at once. Any thread.

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace tandem::transport::testing {

struct FakeCuda {
  static void reset();
  // What page_copy() answers from now on.
  static void fail_kernels(cudaError_t error);
  // Streams with copies never get any further.
  static void freeze_streams();
  // From now on no event ends.
  static void hold_events();
  // Calls so far that take memory of a device or give it back.
  [[nodiscard]] static int memory_calls();
  // What happened, in order: "stream ended", and what a test adds.
  static void note(std::string event);
  [[nodiscard]] static std::vector<std::string> notes();
  [[nodiscard]] static int device();  // the calling thread's
};

}  // namespace tandem::transport::testing
