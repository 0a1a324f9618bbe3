#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

// What benches need of a card besides the kernels under test.
namespace tandem::cuda {

// Reads `bytes` (a multiple of 16) once, as fast as reading goes: the ceiling of everything that
// streams weights or KV. `sink` (4 bytes) keeps the compiler from leaving the reads out.
cudaError_t read_stream(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream);

// Copies `bytes` (a multiple of 16): the ceiling of what reads and writes.
cudaError_t copy_stream(void* to, const void* from, size_t bytes, cudaStream_t stream);

// Roughly normal numbers, the same for the same seed. Never time on zeros: they run faster.
cudaError_t fill_normal(Bf16* out, size_t count, float deviation, uint32_t seed,
                        cudaStream_t stream);
cudaError_t fill_normal(float* out, size_t count, float deviation, uint32_t seed,
                        cudaStream_t stream);

}  // namespace tandem::cuda
