#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace tandem::cuda {

// A bf16 tensor of three dimensions, the fastest first, and the box that one copy moves.
struct TensorMap3d {
  const void* data = nullptr;         // aligned to 16 bytes
  std::array<uint64_t, 3> size = {};  // elements
  uint64_t stride_1 = 0;              // bytes between neighbours in dimension 1, multiples of 16
  uint64_t stride_2 = 0;              // ... in dimension 2
  std::array<uint32_t, 3> box = {};   // elements, each at most 256
  // Bytes of a box's row, 32, 64 or 128: shared memory is swizzled accordingly, as wgmma reads it.
  uint32_t swizzle = 0;
};

// Host only, under a microsecond; finds the driver's entry point at the first call. Needs neither a
// stream nor a context of its own.
cudaError_t make_tensor_map(const TensorMap3d& tensor, CUtensorMap& map);

}  // namespace tandem::cuda
