#include "common/cuda/device.h"

#include <cuda_runtime_api.h>

#include "common/base/hex.h"
#include "common/cuda/cuda_status.h"

namespace tandem::cuda {
namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = to_hex({uuid.bytes, sizeof(uuid.bytes)});
  for (const size_t at : {20, 16, 12, 8}) text.insert(at, 1, '-');
  return "GPU-" + text;
}

Result<DeviceInfo> read_info(int index) {
  cudaDeviceProp p{};
  TANDEM_CUDA_TRY(cudaGetDeviceProperties(&p, index));
  char pci[32] = {};
  TANDEM_CUDA_TRY(cudaDeviceGetPCIBusId(pci, sizeof(pci), index));
  return DeviceInfo{.index = index,
                    .name = p.name,
                    .uuid = uuid_text(p.uuid),
                    .pci_id = pci,
                    .major = p.major,
                    .minor = p.minor,
                    .multiprocessors = p.multiProcessorCount,
                    .copy_engines = p.asyncEngineCount,
                    .memory_bytes = p.totalGlobalMem,
                    .l2_bytes = static_cast<size_t>(p.l2CacheSize),
                    .shared_bytes_per_block = p.sharedMemPerBlockOptin};
}

}  // namespace

bool built_with_cuda() { return true; }

std::string_view built_architectures() { return TANDEM_CUDA_ARCHITECTURES; }

Result<CudaVersions> cuda_versions() {
  CudaVersions versions{.driver = 0, .runtime = CUDART_VERSION};
  TANDEM_CUDA_TRY(cudaDriverGetVersion(&versions.driver));
  return versions;
}

Result<std::vector<DeviceInfo>> list_devices() {
  int count = 0;
  TANDEM_CUDA_TRY(cudaGetDeviceCount(&count));
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    TANDEM_ASSIGN(DeviceInfo info, read_info(i));
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<Device> Device::open(int index) {
  TANDEM_ASSIGN(const std::vector<DeviceInfo> devices, list_devices());
  TANDEM_TRY(check_index(index, devices));
  Device device(devices[static_cast<size_t>(index)]);
  TANDEM_TRY(check_architecture(device.info(), built_architectures()));
  TANDEM_TRY(device.make_current());
  TANDEM_CUDA_TRY(cudaFree(nullptr));  // makes the context, so that its cost and errors come here
  return device;
}

Result<Device::Memory> Device::memory() const {
  const DeviceScope scope(info_.index);
  Memory memory;
  TANDEM_CUDA_TRY(cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

Status Device::make_current() const {
  return cuda_status(cudaSetDevice(info_.index), "cudaSetDevice");
}

}  // namespace tandem::cuda
