#pragma once

#include <cstdint>
#include <span>

#include "common/base/result.h"
#include "common/cuda/device_info.h"
#include "common/model/config.h"

namespace tandem::engine {

// Quantizes one output channel of a weight as kernels/cuda/fp8_rows.h quantizes a row of
// activations: float8 e4m3fn elements, x = element * scale. `out` takes as many bytes as the row
// has elements. Pure.
[[nodiscard]] float quantize_fp8_row(std::span<const float> row, uint8_t* out);

// Whether FP8 products with a scale for each row and channel are there: on Hopper, from cuBLASLt
// 12.9 on (`cublaslt_version` as cublasLtGetVersion() has it).
[[nodiscard]] Status check_fp8(const cuda::DeviceInfo& device, size_t cublaslt_version);

// Whether a projection of these sizes can be kept in FP8.
[[nodiscard]] Status check_fp8_shape(int64_t in, int64_t out);

// Whether all projections of a model can: says so before its weights are read.
[[nodiscard]] Status check_fp8_model(const model::ModelConfig& model);

}  // namespace tandem::engine
