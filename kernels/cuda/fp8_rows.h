#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

// Rows of activations to float8 e4m3fn, as FP8 projections take them: a scale for each row,
// value = element * scale. With y the row in bf16 and `largest` its largest magnitude:
// out[r, c] = e4m3(y[r, c] * (448 / largest)), scales[r] = largest / 448; a row of zeros has scale
// 0. To nearest even, as common/kv/codec.h. The last two spare the round trip through memory of
// their bf16 rows, and give the same bits. See step.h for conventions.
namespace tandem::cuda {

// Where the rows go.
struct Fp8Out {
  uint8_t* out = nullptr;   // [rows, cols], 8-byte aligned
  float* scales = nullptr;  // [rows]
};

// The longest rows these kernels take: a row waits in shared memory for its scale.
inline constexpr int64_t kFp8RowCols = 50 * 1024;

// Lets the kernels below use all the shared memory there is. Once a device, before the first.
cudaError_t prepare_fp8_rows();

struct Fp8Rows {
  const Bf16* x = nullptr;  // [rows, cols], 16-byte aligned
  uint32_t rows = 0;
  int64_t cols = 0;  // % 8 == 0
  Fp8Out to;
};
cudaError_t quantize_rows(const Fp8Rows& task, cudaStream_t stream);

// y = what rms_norm() of rows.h writes.
struct Fp8Norm {
  const float* x = nullptr;         // [*, hidden]
  const uint32_t* index = nullptr;  // row i is x[index[i]]; null: row i
  const float* norm = nullptr;      // [hidden]
  float eps = 0;
  uint32_t rows = 0;
  int64_t hidden = 0;  // % 4 == 0
  Fp8Out to;
};
cudaError_t quantize_normed(const Fp8Norm& task, cudaStream_t stream);

// y = what silu_mul() of rows.h writes.
struct Fp8Silu {
  const Bf16* gate_up = nullptr;  // [rows, 2 * intermediate], gate and up side by side
  uint32_t rows = 0;
  int64_t intermediate = 0;  // % 8 == 0
  Fp8Out to;
};
cudaError_t quantize_silu(const Fp8Silu& task, cudaStream_t stream);

}  // namespace tandem::cuda
