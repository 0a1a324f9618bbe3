#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

// Fixture of every GPU test: device 0, or a visible skip where there is none.
namespace tandem::cuda {

class CardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no CUDA device here (" << cudaGetErrorString(error) << ")";
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
};

}  // namespace tandem::cuda

#define ASSERT_CUDA(call)                                                                        \
  do {                                                                                           \
    const cudaError_t error_of_call = (call);                                                    \
    ASSERT_EQ(error_of_call, cudaSuccess) << #call << ": " << cudaGetErrorString(error_of_call); \
  } while (false)
