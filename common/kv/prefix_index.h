#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/ids.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_pool.h"

namespace tandem::kv {

// Monotonic, except `entries`.
struct PrefixStats {
  uint64_t query_tokens = 0;  // of all match() calls
  uint64_t hit_tokens = 0;    // of those, found; the rest missed
  uint64_t inserted_blocks = 0;
  uint64_t evicted_blocks = 0;
  uint64_t entries = 0;
};

// Finds blocks that already hold the KV of a prompt's beginning. A block is found by the hash of
// its tokens and its predecessor; tokens and predecessor are then compared in full, so a collision
// costs a miss and never gives another prompt's KV. Held by the node beside its pool; the control
// thread only. Destroyed before the pool.
class PrefixIndex {
 public:
  using HashFunction = ChainHash (*)(ChainHash, std::span<const TokenId, kBlockTokens>);
  // `hash` is for tests that need collisions.
  explicit PrefixIndex(BlockPool& pool, HashFunction hash = chain_hash);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // References to the longest known chain of whole blocks at the start of `tokens`, never all of
  // them: at least one token remains to be computed, since only that gives logits.
  [[nodiscard]] std::vector<BlockHandle> match(std::span<const TokenId> tokens);
  // How many tokens match() would find; touches neither statistics nor eviction order.
  [[nodiscard]] uint32_t peek(std::span<const TokenId> tokens) const;

  // Makes the whole blocks of `tokens` findable; `table` holds their complete KV. The last, partly
  // filled block stays private to its sequence. Where the same content is already known, the known
  // block stays the shared one. Call again as a sequence grows.
  void insert(std::span<const TokenId> tokens, const BlockTable& table);

  // Forgets everything; blocks that nobody holds become free.
  void clear();

  [[nodiscard]] PrefixStats stats() const;

 private:
  struct Entry {
    BlockId block;
    uint64_t serial = 0;         // unique over the index's life
    uint64_t parent_serial = 0;  // 0: the first block of a prompt
    std::array<TokenId, kBlockTokens> tokens{};
  };
  const Entry* find(ChainHash hash, uint64_t parent_serial,
                    std::span<const TokenId, kBlockTokens> tokens) const;
  template <typename Visit>
  void walk(std::span<const TokenId> tokens, Visit&& visit) const;
  void forget(BlockId block);

  BlockPool& pool_;
  const HashFunction hash_;
  std::unordered_map<ChainHash, Entry> entries_;
  std::unordered_map<BlockId, ChainHash> by_block_;
  uint64_t next_serial_ = 1;
  PrefixStats stats_;
};

}  // namespace tandem::kv
