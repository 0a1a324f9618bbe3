#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/kv/layout.h"

namespace tandem::kv {

// Names the content of a 16-token block *and everything before it*: two blocks with the same chain
// hash hold the same KV unless the hash collides (the index compares tokens; a router only
// prefers).
using ChainHash = uint64_t;
inline constexpr ChainHash kChainRoot = 0;

// XXH3-64 of the tokens (little-endian int32), seeded with the parent's hash.
[[nodiscard]] ChainHash chain_hash(ChainHash parent, std::span<const TokenId, kBlockTokens> tokens);

// One hash per whole block of `tokens`.
[[nodiscard]] std::vector<ChainHash> chain_hashes(std::span<const TokenId> tokens);

}  // namespace tandem::kv
