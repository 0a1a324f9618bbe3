#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace tandem::router {

// Hash i covers tokens 0 .. 16*(i+1): equal hashes mean equal prefixes (64 bits of XXH3, used for
// placement only, never for correctness). Whole blocks only.
[[nodiscard]] std::vector<uint64_t> hash_blocks(std::span<const TokenId> tokens);

}  // namespace tandem::router
