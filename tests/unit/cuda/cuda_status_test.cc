#include "common/cuda/cuda_status.h"

#include <gtest/gtest.h>

namespace tandem::cuda {
namespace {

struct Expected {
  cudaError_t error;
  ErrorCode code;
  const char* advice;  // part of the text
};

// What a caller does about an error follows from its code, what an operator does from its text.
TEST(CudaStatus, EveryKindOfFailureHasItsCodeAndSaysWhatToDo) {
  const Expected expected[] = {
      {cudaErrorMemoryAllocation, ErrorCode::kResourceExhausted, "lower gpu_memory_utilization"},
      {cudaErrorNoDevice, ErrorCode::kUnavailable, "CUDA_VISIBLE_DEVICES"},
      {cudaErrorDevicesUnavailable, ErrorCode::kUnavailable, "another process holds the card"},
      {cudaErrorSystemNotReady, ErrorCode::kUnavailable, "nvidia-fabricmanager"},
      {cudaErrorInvalidDevice, ErrorCode::kConfig, "tandem doctor"},
      {cudaErrorCallRequiresNewerDriver, ErrorCode::kUnsupported, "update the driver"},
      {cudaErrorSystemDriverMismatch, ErrorCode::kUnsupported, "update the driver"},
      {cudaErrorUnsupportedPtxVersion, ErrorCode::kUnsupported, "update the driver"},
      {cudaErrorNoKernelImageForDevice, ErrorCode::kUnsupported, "TANDEM_CUDA_ARCHITECTURES"},
      {cudaErrorIllegalAddress, ErrorCode::kDeviceLost, "must restart"},
      {cudaErrorECCUncorrectable, ErrorCode::kDeviceLost, "must restart"},
      {cudaErrorNvlinkUncorrectable, ErrorCode::kDeviceLost, "must restart"},
      {cudaErrorLaunchTimeout, ErrorCode::kDeviceLost, "must restart"},
      {cudaErrorLaunchFailure, ErrorCode::kDeviceLost, "must restart"},
      {cudaErrorInvalidValue, ErrorCode::kInternal, "invalid argument"},
  };
  for (const Expected& e : expected) {
    const Status status = cuda_status(e.error, "cudaDoIt");
    ASSERT_FALSE(status);
    const Error& error = status.error();
    EXPECT_EQ(error.code, e.code) << error.detail;
    for (const char* part : {"cudaDoIt: ", cudaGetErrorName(e.error), e.advice})
      EXPECT_NE(error.detail.find(part), std::string::npos) << part << " in: " << error.detail;
    EXPECT_EQ(is_sticky(e.error), e.code == ErrorCode::kDeviceLost) << cudaGetErrorName(e.error);
  }
  EXPECT_TRUE(cuda_status(cudaSuccess, "cudaDoIt"));
}

}  // namespace
}  // namespace tandem::cuda
