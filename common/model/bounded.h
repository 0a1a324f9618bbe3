#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::model {

// A whole number of a configuration within [low, high]; absent stays absent. `Fields` has
// integer(key) and error(code, key, what), which names file and field.
template <typename Fields>
[[nodiscard]] Result<std::optional<uint32_t>> bounded_u32(const Fields& fields,
                                                          std::string_view key, uint32_t low,
                                                          uint32_t high) {
  TANDEM_ASSIGN(const std::optional<int64_t> v, fields.integer(key));
  if (!v) return std::nullopt;
  if (*v < low || *v > high)
    return fail(fields.error(ErrorCode::kCorruptData, key,
                             "must be between " + std::to_string(low) + " and " +
                                 std::to_string(high) + ", is " + std::to_string(*v)));
  return static_cast<uint32_t>(*v);
}

}  // namespace tandem::model
