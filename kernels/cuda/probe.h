#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// The smallest kernel: shows at start whether this build's machine code runs on a card at all.
namespace tandem::cuda {

// Writes 10 * major + minor of the architecture it was compiled for to *architecture (device
// memory). Fails with cudaErrorNoKernelImageForDevice where the build has no code for the card.
cudaError_t probe_architecture(uint32_t* architecture, cudaStream_t stream);

}  // namespace tandem::cuda
