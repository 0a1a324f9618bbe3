#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/ops.h"
#include "common/kv/block_pool.h"
#include "common/kv/layout.h"
#include "common/kv/prefix_index.h"

namespace tandem::node {

struct KvUsage {
  uint32_t capacity = 0;
  uint32_t used = 0;    // referenced by requests or reservations
  uint32_t cached = 0;  // evictable prefix blocks
  uint32_t free = 0;
  uint64_t prefix_hit_tokens = 0;  // since start
  uint64_t prefix_query_tokens = 0;
  uint64_t evicted = 0;
  [[nodiscard]] uint32_t available() const { return cached + free; }
};

// A node's block pool and prefix index, as its scheduler uses them. Control thread only; outlives
// every table it gave out.
class KvStore {
 public:
  struct Options {
    kv::BlockPoolOptions pool;
    bool prefix_cache = true;
  };
  [[nodiscard]] static Result<std::unique_ptr<KvStore>> create(const Options& options);
  // Over memory that an engine made for this pool (Ops::create_kv_memory).
  [[nodiscard]] static Result<std::unique_ptr<KvStore>> create(
      const Options& options, std::unique_ptr<kv::PageMemory> memory);

  [[nodiscard]] const kv::KvLayout& layout() const { return pool_->layout(); }
  // What the engine and the transport address; valid as long as the store.
  [[nodiscard]] engine::KvPages pages() const;
  // How the host reads and writes them; any thread.
  [[nodiscard]] kv::PageMemory& memory() const { return pool_->memory(); }

  struct Acquired {
    kv::BlockTable table;
    uint32_t reused_tokens = 0;  // leading tokens whose KV was there: shared blocks, never written
  };
  // Blocks for all `tokens`, and a tail slot if the layout needs one. With `reuse`, leading whole
  // blocks come from the prefix index as far as it knows them. kResourceExhausted holds nothing.
  [[nodiscard]] Result<Acquired> acquire(std::span<const TokenId> tokens, bool reuse);
  // One more block at the end. False when none can be had.
  [[nodiscard]] bool grow(kv::BlockTable& table);
  // Makes the whole blocks of `tokens` known to later prompts; `table` holds their complete KV.
  void publish(std::span<const TokenId> tokens, const kv::BlockTable& table);

  [[nodiscard]] KvUsage usage() const;

 private:
  KvStore(std::unique_ptr<kv::BlockPool> pool, bool prefix_cache);
  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<kv::PrefixIndex> index_;  // null: switched off
};

}  // namespace tandem::node
