#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <vector>

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

// Problems for a test: all of them, or with TANDEM_TEST_SMALL set a few small ones that reach every
// form of its kernels just as well. A sanitizer makes each take a hundred times as long.
template <typename T>
std::vector<T> problems(std::initializer_list<T> all, std::initializer_list<T> small) {
  const char* wanted = std::getenv("TANDEM_TEST_SMALL");
  return wanted != nullptr && *wanted != '\0' ? small : all;
}

}  // namespace tandem::cuda

#define ASSERT_CUDA(call)                                                                        \
  do {                                                                                           \
    const cudaError_t error_of_call = (call);                                                    \
    ASSERT_EQ(error_of_call, cudaSuccess) << #call << ": " << cudaGetErrorString(error_of_call); \
  } while (false)
