#pragma once

#include <cuda_runtime_api.h>

#include "tests/gpu/card.h"
#include "tests/unit/transport/suite.h"

namespace tandem::transport::testing {

// One cudaMalloc, handed out piece by piece; starts anew with each test.
class DeviceArena final : public PageArena {
 public:
  explicit DeviceArena(size_t bytes) : bytes_(bytes) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
    data_ = static_cast<std::byte*>(data);
  }
  ~DeviceArena() override { cudaFree(data_); }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  std::byte* allocate(size_t bytes) override {
    EXPECT_LE(used_ + bytes, bytes_);
    std::byte* const at = data_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    return at;
  }
  void upload(std::byte* to, std::span<const std::byte> from) override {
    EXPECT_EQ(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  void download(std::span<std::byte> to, const std::byte* from) const override {
    EXPECT_EQ(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  }
  std::span<std::byte> memory() const { return {data_, bytes_}; }
  void reset() { used_ = 0; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t used_ = 0;
};

}  // namespace tandem::transport::testing
