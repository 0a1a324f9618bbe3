#include "kernels/cuda/probe.h"

#include "tests/gpu/card.h"

namespace tandem::cuda {
namespace {

TEST_F(CardTest, KernelsOfThisBuildRunOnTheCard) {
  cudaDeviceProp properties{};
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 0));
  uint32_t* architecture = nullptr;
  ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&architecture), sizeof(uint32_t)));
  ASSERT_CUDA(cudaMemset(architecture, 0xff, sizeof(uint32_t)));
  ASSERT_CUDA(probe_architecture(architecture, nullptr));
  uint32_t value = 0;
  ASSERT_CUDA(cudaMemcpy(&value, architecture, sizeof(value), cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, static_cast<uint32_t>(10 * properties.major + properties.minor));
  ASSERT_CUDA(cudaFree(architecture));
}

}  // namespace
}  // namespace tandem::cuda
