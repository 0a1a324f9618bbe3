#include "common/node/kv_store.h"

#include <utility>
#include <vector>

#include "common/node/handover.h"

namespace tandem::node {

KvStore::KvStore(std::unique_ptr<kv::BlockPool> pool, bool prefix_cache)
    : pool_(std::move(pool)),
      index_(prefix_cache ? std::make_unique<kv::PrefixIndex>(*pool_) : nullptr) {}

Result<std::unique_ptr<KvStore>> KvStore::create(const Options& options) {
  TANDEM_ASSIGN(auto pool, kv::BlockPool::create(options.pool));
  return std::unique_ptr<KvStore>(new KvStore(std::move(pool), options.prefix_cache));
}

Result<std::unique_ptr<KvStore>> KvStore::create(const Options& options,
                                                 std::unique_ptr<kv::PageMemory> memory) {
  TANDEM_ASSIGN(auto pool, kv::BlockPool::create(options.pool, std::move(memory)));
  return std::unique_ptr<KvStore>(new KvStore(std::move(pool), options.prefix_cache));
}

engine::KvPages KvStore::pages() const {
  return {.layout = pool_->layout(),
          .pages = pool_->pages(),
          .blocks = pool_->capacity(),
          .tail = pool_->tail_pages(),
          .tails = pool_->tail_capacity()};
}

Result<KvStore::Acquired> KvStore::acquire(std::span<const TokenId> tokens, bool reuse) {
  reuse = reuse && index_ != nullptr;
  const uint32_t wanted = blocks_for(tokens.size());
  // Before match(), so that a request that keeps waiting for blocks is not counted on every try.
  const uint32_t known = reuse ? index_->peek(tokens) / kv::kBlockTokens : 0;
  if (wanted - known > pool_->available_blocks()) {
    return fail(ErrorCode::kResourceExhausted,
                std::to_string(wanted - known) + " KV blocks are needed, " +
                    std::to_string(pool_->available_blocks()) + " can be had");
  }
  Acquired result;
  if (layout().needs_tail()) {
    TANDEM_ASSIGN(result.table.tail, pool_->allocate_tail());
  }
  if (reuse) {
    result.table.append(index_->match(tokens));
    result.reused_tokens = static_cast<uint32_t>(result.table.size()) * kv::kBlockTokens;
  }
  TANDEM_ASSIGN(auto blocks, pool_->allocate(wanted - result.table.size()));
  result.table.append(std::move(blocks));
  return result;
}

bool KvStore::grow(kv::BlockTable& table) {
  auto block = pool_->allocate_one();
  if (!block) return false;
  table.append(std::move(*block));
  return true;
}

void KvStore::publish(std::span<const TokenId> tokens, const kv::BlockTable& table) {
  if (index_ != nullptr) index_->insert(tokens, table);
}

KvUsage KvStore::usage() const {
  KvUsage usage;
  usage.capacity = pool_->capacity();
  usage.used = pool_->held_blocks();
  usage.cached = pool_->cached_blocks();
  usage.free = pool_->free_blocks();
  if (index_ != nullptr) {
    const auto stats = index_->stats();
    usage.prefix_hit_tokens = stats.hit_tokens;
    usage.prefix_query_tokens = stats.query_tokens;
    usage.evicted = stats.evicted_blocks;
  }
  return usage;
}

}  // namespace tandem::node
