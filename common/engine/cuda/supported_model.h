#pragma once

#include "common/base/result.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/model/config.h"

namespace tandem::engine {

// Whether the CUDA engine runs this model as `options` ask. kUnsupported names the field of the
// model's config.json or of the node's configuration, its value and what is taken. Pure: known
// before a card is opened or a weight is read.
[[nodiscard]] Status check_supported(const CudaOptions& options, const model::ModelConfig& model);

}  // namespace tandem::engine
