#pragma once

#include <memory>

#include "common/base/dtype.h"
#include "common/engine/host_ops.h"

namespace tandem::testing {

// Ops in the plainest loops there are: the yardstick of the typed suites, never of production. Sums
// in double. `weights` kBf16 rounds matrices to bf16 on load, as the engines do. Keeps every KV
// format, through the scalar codec of common/kv.
[[nodiscard]] std::unique_ptr<engine::Ops> create_reference_ops(DType weights);

}  // namespace tandem::testing
