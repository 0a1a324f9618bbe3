#pragma once

#include <cstdint>
#include <memory>

#include "common/engine/ops.h"

namespace tandem::testing {

// The CPU engine in float32, but for activations: normed rows and whatever a projection, rotation
// or attention leaves are rounded to bf16, as engines on a card keep them. How far its results are
// from those without rounding is what a model makes of such roundings.
// `fp8_above`: steps of more rows round what enters a projection to float8 e4m3, scaled row by row.
[[nodiscard]] std::unique_ptr<engine::Ops> create_rounded_ops(uint32_t fp8_above = UINT32_MAX);

// The same without any rounding.
[[nodiscard]] std::unique_ptr<engine::Ops> create_float_ops();

}  // namespace tandem::testing
