#include "kernels/cuda/probe.h"

namespace tandem::cuda {
namespace {

__global__ void write_architecture(uint32_t* architecture) {
#ifdef __CUDA_ARCH__
  *architecture = __CUDA_ARCH__ / 10;
#endif
}

}  // namespace

cudaError_t probe_architecture(uint32_t* architecture, cudaStream_t stream) {
  write_architecture<<<1, 1, 0, stream>>>(architecture);
  return cudaGetLastError();
}

}  // namespace tandem::cuda
