#pragma once

#include "common/model/config.h"
#include "common/model/json.h"

namespace tandem::model {

// Reads `rope_parameters` (transformers 5) or `rope_scaling` + `rope_theta` (transformers 4) as the
// reference's RotaryEmbeddingConfigMixin does: rope_scaling wins where both are set, a theta inside
// the object wins over the one outside. May shorten config.max_positions (dynamic).
[[nodiscard]] Status parse_rope(const boost::json::object& root, std::string_view file,
                                ModelConfig& config);

// Checks factors and lengths of a filled RopeConfig; `where` names its source.
[[nodiscard]] Status validate_rope(const RopeConfig& rope, std::string_view where);

}  // namespace tandem::model
