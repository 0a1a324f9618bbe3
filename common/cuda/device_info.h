#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

// What is known of the cards of this machine. Free of CUDA headers: every program may ask, and one
// built without CUDA answers that it was.
namespace tandem::cuda {

struct DeviceInfo {
  int index = 0;  // as CUDA counts them under CUDA_VISIBLE_DEVICES
  std::string name;
  std::string uuid;          // "GPU-8f0c…", as nvidia-smi prints it
  std::string pci_id;        // "0000:1b:00.0"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int copy_engines = 0;
  size_t memory_bytes = 0;
  size_t l2_bytes = 0;
  size_t shared_bytes_per_block = 0;  // with opt-in
};

struct CudaVersions {
  int driver = 0;   // newest CUDA that the driver speaks, 13000 for 13.0; 0: no driver here
  int runtime = 0;  // of this build
};
// 13020 -> "13.2"
[[nodiscard]] std::string version_text(int version);

// Whether this build has CUDA code at all.
[[nodiscard]] bool built_with_cuda();
// "90a"; empty without CUDA.
[[nodiscard]] std::string_view built_architectures();

[[nodiscard]] Result<CudaVersions> cuda_versions();

// Every visible card. An error says why there is none and what to do. Makes no context.
[[nodiscard]] Result<std::vector<DeviceInfo>> list_devices();

// The checks of Device::open, as pure functions.
// `wanted` against what is there; the error lists the cards.
[[nodiscard]] Status check_index(int wanted, const std::vector<DeviceInfo>& devices);
// Whether code compiled for `architectures` ("90a", or "80;90a") runs on a card of that capability:
// machine code runs on the same major version and a minor at least as high, with suffix `a` on
// exactly that one.
[[nodiscard]] Status check_architecture(const DeviceInfo& device, std::string_view architectures);

// "0: NVIDIA H200 (GPU-…), 1: …"
[[nodiscard]] std::string describe(const std::vector<DeviceInfo>& devices);

}  // namespace tandem::cuda
