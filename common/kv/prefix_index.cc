#include "common/kv/prefix_index.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::kv {

PrefixIndex::PrefixIndex(BlockPool& pool, HashFunction hash) : pool_(pool), hash_(hash) {
  pool_.on_evict([this](BlockId block) {
    ++stats_.evicted_blocks;
    forget(block);
  });
}

PrefixIndex::~PrefixIndex() {
  clear();
  pool_.on_evict(nullptr);
}

const PrefixIndex::Entry* PrefixIndex::find(ChainHash hash, uint64_t parent_serial,
                                            std::span<const TokenId, kBlockTokens> tokens) const {
  const auto it = entries_.find(hash);
  if (it == entries_.end()) return nullptr;
  const Entry& entry = it->second;
  const bool same =
      entry.parent_serial == parent_serial && std::ranges::equal(entry.tokens, tokens);
  return same ? &entry : nullptr;
}

template <typename Visit>
void PrefixIndex::walk(std::span<const TokenId> tokens, Visit&& visit) const {
  ChainHash hash = kChainRoot;
  uint64_t parent = 0;
  for (size_t at = 0; at + kBlockTokens < tokens.size(); at += kBlockTokens) {
    const auto part = tokens.subspan(at).first<kBlockTokens>();
    hash = hash_(hash, part);
    const Entry* entry = find(hash, parent, part);
    if (entry == nullptr) return;
    visit(*entry);
    parent = entry->serial;
  }
}

std::vector<BlockHandle> PrefixIndex::match(std::span<const TokenId> tokens) {
  std::vector<BlockHandle> blocks;
  walk(tokens, [&](const Entry& entry) { blocks.push_back(pool_.share(entry.block)); });
  stats_.query_tokens += tokens.size();
  stats_.hit_tokens += blocks.size() * kBlockTokens;
  return blocks;
}

uint32_t PrefixIndex::peek(std::span<const TokenId> tokens) const {
  uint32_t found = 0;
  walk(tokens, [&](const Entry&) { found += kBlockTokens; });
  return found;
}

void PrefixIndex::insert(std::span<const TokenId> tokens, const BlockTable& table) {
  const size_t whole = std::min(tokens.size() / kBlockTokens, table.size());
  ChainHash hash = kChainRoot;
  uint64_t parent = 0;
  for (size_t i = 0; i < whole; ++i) {
    const auto part = tokens.subspan(i * kBlockTokens).first<kBlockTokens>();
    hash = hash_(hash, part);
    if (const Entry* known = find(hash, parent, part)) {
      parent = known->serial;
      continue;
    }
    // Another content under this hash (a collision, or a chain whose beginning was evicted): the
    // newer one is likelier to be asked for.
    if (const auto it = entries_.find(hash); it != entries_.end()) forget(it->second.block);
    const BlockId block = table.ids()[i];
    if (by_block_.contains(block)) return;  // already findable as part of another chain
    Entry entry{.block = block, .serial = next_serial_++, .parent_serial = parent};
    std::ranges::copy(part, entry.tokens.begin());
    parent = entry.serial;
    entries_.emplace(hash, entry);
    by_block_.emplace(block, hash);
    pool_.set_indexed(block);
    ++stats_.inserted_blocks;
  }
}

void PrefixIndex::forget(BlockId block) {
  const auto it = by_block_.find(block);
  TANDEM_CHECK(it != by_block_.end(), "the block is not in the prefix index");
  entries_.erase(it->second);
  by_block_.erase(it);
  pool_.clear_indexed(block);
}

void PrefixIndex::clear() {
  while (!by_block_.empty()) forget(by_block_.begin()->first);
}

PrefixStats PrefixIndex::stats() const {
  PrefixStats stats = stats_;
  stats.entries = entries_.size();
  return stats;
}

}  // namespace tandem::kv
