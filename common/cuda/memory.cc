#include "common/cuda/memory.h"

#include <cstring>
#include <string>

namespace tandem::cuda {

Result<std::byte*> DeviceMemory::allocate(size_t bytes) {
  void* data = nullptr;
  const std::string call = "cudaMalloc of " + std::to_string(bytes >> 20) + " MiB";
  TANDEM_TRY(cuda_status(cudaMalloc(&data, bytes), call.c_str()));
  return static_cast<std::byte*>(data);
}

void DeviceMemory::free(std::byte* data) noexcept { report_failure(cudaFree(data), "cudaFree"); }

Result<std::byte*> PinnedMemory::allocate(size_t bytes) {
  void* data = nullptr;
  const std::string call = "cudaHostAlloc of " + std::to_string(bytes >> 20) + " MiB host memory";
  TANDEM_TRY(cuda_status(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), call.c_str()));
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

void PinnedMemory::free(std::byte* data) noexcept {
  report_failure(cudaFreeHost(data), "cudaFreeHost");
}

Result<PinnedRegistration> PinnedRegistration::create(std::span<std::byte> memory) {
  PinnedRegistration result;
  if (memory.empty()) return result;
  TANDEM_CUDA_TRY(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable));
  result.handle_.reset(memory.data());
  return result;
}

Status copy_to_device(void* device, const void* host, size_t bytes, const Stream& stream) {
  return cuda_status(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream.get()),
                     "cudaMemcpyAsync to the device");
}

Status copy_to_host(void* host, const void* device, size_t bytes, const Stream& stream) {
  return cuda_status(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream.get()),
                     "cudaMemcpyAsync to the host");
}

Status copy_on_device(void* to, const void* from, size_t bytes, const Stream& stream) {
  return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
                     "cudaMemcpyAsync on the device");
}

}  // namespace tandem::cuda
