#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

// How kernels of this folder follow each other: every launch allows programmatic dependent launch,
// so a kernel may begin while the one before it still runs. The rules that make this safe:
// - every block calls wait_for_previous() before it touches memory that an earlier kernel writes,
//   and before it writes memory that an earlier kernel reads; only weights may be read before;
// - allow_next() may come at any time: it promises nothing about data, since the next kernel waits
//   for this one to end.
namespace tandem::cuda {

// What the hardware takes of blocks along y.
inline constexpr uint32_t kMaxGridY = 65535;

__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void allow_next() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// In clusters of so many blocks along x.
template <typename... Params, typename... Args>
cudaError_t launch_chained_clusters(void (*kernel)(Params...), dim3 grid, unsigned cluster,
                                    dim3 block, size_t shared_bytes, cudaStream_t stream,
                                    Args&&... args) {
  cudaLaunchAttribute attributes[3]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  // Neighbours that divide a multiprocessor's memory alike: it must be idle to change that, so
  // kernels that want it otherwise could not run side by side.
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  attributes[2].id = cudaLaunchAttributeClusterDimension;
  attributes[2].val.clusterDim.x = cluster;
  attributes[2].val.clusterDim.y = 1;
  attributes[2].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 3 : 2;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

template <typename... Params, typename... Args>
cudaError_t launch_chained(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, Args&&... args) {
  return launch_chained_clusters(kernel, grid, 1, block, shared_bytes, stream,
                                 std::forward<Args>(args)...);
}

}  // namespace tandem::cuda
