#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/step.h"

// What happens to rows of activations outside the matrix products. All matrices are row-major and
// dense unless a stride is given; any size works, multiples of 8 columns at full speed. Rows of a
// step are taken as launched (padding rows are computed like others). See step.h for conventions.
namespace tandem::cuda {

// x[rows, hidden] = table[tokens] (bf16 to float32). Padding rows become zeros.
cudaError_t embed(const DeviceStep& step, const Bf16* table, int64_t hidden, float* x,
                  cudaStream_t stream);

// out[i] = rms_norm(x[index[i]]) * norm, rounded to bf16 once; index null: row i. With `factors`,
// out[i] = x * norm and factors[i] is what it must be multiplied by: the bits that linear_small()'s
// own norm works with.
struct RmsNorm {
  const float* x = nullptr;  // [*, hidden]
  const uint32_t* index = nullptr;
  const float* norm = nullptr;  // [hidden]
  float eps = 0;
  uint32_t rows = 0;
  int64_t hidden = 0;
  Bf16* out = nullptr;  // [rows, hidden]
  float* factors = nullptr;
};
cudaError_t rms_norm(const RmsNorm& task, cudaStream_t stream);

// out[r, i] = silu(gate) * up of gate_up[r, 2i], gate_up[r, 2i + 1]: gate | up weights are stored
// with their rows interleaved (see interleave in common/engine/cuda/weights).
cudaError_t silu_mul(uint32_t rows, int64_t intermediate, const Bf16* gate_up, Bf16* out,
                     cudaStream_t stream);

// x[r, c] += bias[c]
cudaError_t add_bias(uint32_t rows, int64_t columns, const Bf16* bias, float* x,
                     cudaStream_t stream);

}  // namespace tandem::cuda
