#include "router/dispatch/block_hashes.h"

#include <xxhash.h>

#include "router/dispatch/types.h"

namespace tandem::router {

std::vector<uint64_t> hash_blocks(std::span<const TokenId> tokens) {
  std::vector<uint64_t> hashes(tokens.size() / kBlockTokens);
  uint64_t chain = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    chain = XXH3_64bits_withSeed(tokens.data() + i * kBlockTokens, kBlockTokens * sizeof(TokenId),
                                 chain);
    hashes[i] = chain;
  }
  return hashes;
}

}  // namespace tandem::router
