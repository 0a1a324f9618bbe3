#include "common/kv/block_hash.h"

#include <xxhash.h>

#include <bit>

namespace tandem::kv {

static_assert(std::endian::native == std::endian::little,
              "chain hashes are of little-endian bytes");

ChainHash chain_hash(ChainHash parent, std::span<const TokenId, kBlockTokens> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

std::vector<ChainHash> chain_hashes(std::span<const TokenId> tokens) {
  std::vector<ChainHash> hashes;
  hashes.reserve(tokens.size() / kBlockTokens);
  ChainHash parent = kChainRoot;
  for (size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens) {
    parent = chain_hash(parent, tokens.subspan(at).first<kBlockTokens>());
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace tandem::kv
