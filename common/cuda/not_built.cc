#include "common/cuda/device_info.h"

// What a program without CUDA answers.
namespace tandem::cuda {
namespace {

auto not_built() {
  return fail(ErrorCode::kUnsupported,
              "this build has no CUDA: install a toolkit (scripts/install-cuda.sh) and build with "
              "-DTANDEM_CUDA=ON, or use device: cpu",
              "device");
}

}  // namespace

bool built_with_cuda() { return false; }

Result<CudaVersions> cuda_versions() { return not_built(); }

Result<std::vector<DeviceInfo>> list_devices() { return not_built(); }

}  // namespace tandem::cuda
