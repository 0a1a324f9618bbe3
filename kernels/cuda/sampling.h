#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sample_row.h"

namespace tandem::cuda {

// Call once per device before the first launch or capture (sets the kernel's shared memory).
cudaError_t prepare_sampling(const SamplingPlan& plan);

// Does what sampling.rows[0 .. rows) say to rows of float32 logits (row r at logits + r * stride):
// the semantics and the order of engine::sample(), see sampling.cu for what differs in rounding.
// logits are left as they were. With `overlap` the launch is a programmatic dependent one. The same
// bits every time, whatever other rows there are.
cudaError_t launch_sampling(const SamplingPlan& plan, const float* logits, size_t stride,
                            uint32_t rows, const DeviceSampling& sampling, bool overlap,
                            cudaStream_t stream);

}  // namespace tandem::cuda
