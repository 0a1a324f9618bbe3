#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/kv/layout.h"
#include "common/kv/memory_region.h"
#include "common/kv/page_memory.h"

namespace tandem::kv {

class BlockPool;

// One reference to a block. Move-only; a second reference is made with BlockPool::share().
// Destroyed on the pool's thread, before the pool.
class BlockHandle {
 public:
  BlockHandle() = default;
  BlockHandle(BlockHandle&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  BlockHandle& operator=(BlockHandle&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  ~BlockHandle() { reset(); }

  [[nodiscard]] BlockId id() const { return id_; }
  [[nodiscard]] explicit operator bool() const { return pool_ != nullptr; }
  void reset();

 private:
  friend class BlockPool;
  BlockHandle(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}
  BlockPool* pool_ = nullptr;
  BlockId id_{};
};

// Sole owner of one tail slot (layouts with needs_tail()). Same rules as BlockHandle.
class TailHandle {
 public:
  TailHandle() = default;
  TailHandle(TailHandle&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_) {}
  TailHandle& operator=(TailHandle&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      slot_ = other.slot_;
    }
    return *this;
  }
  ~TailHandle() { reset(); }

  [[nodiscard]] uint32_t slot() const { return slot_; }  // index into KvPages::tail
  [[nodiscard]] explicit operator bool() const { return pool_ != nullptr; }
  void reset();

 private:
  friend class BlockPool;
  TailHandle(BlockPool* pool, uint32_t slot) : pool_(pool), slot_(slot) {}
  BlockPool* pool_ = nullptr;
  uint32_t slot_ = 0;
};

// The blocks of one sequence, in order of position, and its open page if the layout has one.
// Releases back to front, so that of a cached chain the deepest block is the first to be evicted.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) noexcept = default;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { clear(); }

  void append(BlockHandle block);
  void append(std::vector<BlockHandle> blocks);
  void truncate(size_t blocks);  // keeps the first `blocks`
  void clear();

  [[nodiscard]] size_t size() const { return ids_.size(); }
  [[nodiscard]] bool empty() const { return ids_.empty(); }
  [[nodiscard]] std::span<const BlockId> ids() const { return ids_; }  // valid until changed

  TailHandle tail;

 private:
  std::vector<BlockHandle> handles_;
  std::vector<BlockId> ids_;
};

struct BlockPoolOptions {
  KvLayout layout = {};
  uint32_t blocks = 0;
  uint32_t tails =
      0;  // open pages: sequences that may be in work at once; layouts with needs_tail()
  MemoryRegion::Options memory = {};
  // Tests and sims: freed memory is filled with a pattern, and allocating checks that it still
  // holds (TANDEM_CHECK), which catches every write to a block that nobody holds.
  bool poison = false;
};

// Owns the KV memory of one node and says who may use which block. A block is
//   free    nobody refers to it, its content is meaningless
//   held    at least one handle refers to it
//   cached  no handle, but the prefix index can still find its content: evicted LRU when needed
// Allocation takes free blocks first and evicts cached ones after. Running out is
// kResourceExhausted. Thread: the control thread only (page memory itself is read and written by
// the device and transport threads under handles that the control thread keeps).
class BlockPool {
 public:
  // In host memory of its own.
  [[nodiscard]] static Result<std::unique_ptr<BlockPool>> create(const BlockPoolOptions& options);
  // Over memory made elsewhere for the same layout, blocks and tails; `options.memory` is not used,
  // and only host memory can be poisoned.
  [[nodiscard]] static Result<std::unique_ptr<BlockPool>> create(
      const BlockPoolOptions& options, std::unique_ptr<PageMemory> memory);
  ~BlockPool();  // every handle must be gone
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // All or nothing.
  [[nodiscard]] Result<std::vector<BlockHandle>> allocate(size_t count);
  [[nodiscard]] Result<BlockHandle> allocate_one();
  [[nodiscard]] Result<TailHandle> allocate_tail();
  // One more reference to a held or cached block.
  [[nodiscard]] BlockHandle share(BlockId id);

  [[nodiscard]] const KvLayout& layout() const { return options_.layout; }
  [[nodiscard]] uint32_t capacity() const { return options_.blocks; }
  [[nodiscard]] uint32_t tail_capacity() const { return options_.tails; }
  [[nodiscard]] uint32_t free_blocks() const { return static_cast<uint32_t>(free_.size()); }
  [[nodiscard]] uint32_t cached_blocks() const { return static_cast<uint32_t>(lru_.size()); }
  [[nodiscard]] uint32_t held_blocks() const {
    return capacity() - free_blocks() - cached_blocks();
  }
  // What allocate() could hand out now.
  [[nodiscard]] uint32_t available_blocks() const { return free_blocks() + cached_blocks(); }
  [[nodiscard]] uint32_t free_tails() const { return static_cast<uint32_t>(free_tails_.size()); }
  [[nodiscard]] uint32_t references(BlockId id) const;

  // Memory in the order of engine::KvPages: page of (layer, block) at
  // pages() + (layer * capacity() + block) * layout().page_bytes(), tails likewise.
  [[nodiscard]] std::byte* pages() const { return memory_->pages(); }
  [[nodiscard]] std::byte* tail_pages() const { return memory_->tails(); }
  [[nodiscard]] std::span<std::byte> page(uint32_t layer, BlockId id) const;
  [[nodiscard]] std::span<std::byte> tail_page(uint32_t layer, uint32_t slot) const;
  [[nodiscard]] size_t memory_bytes() const { return memory_->bytes(); }
  // How hosts reach the pages; outlives what the caller does with them as the pool does.
  [[nodiscard]] PageMemory& memory() const { return *memory_; }

 private:
  friend class BlockHandle;
  friend class TailHandle;
  friend class PrefixIndex;

  struct Block {
    uint32_t references = 0;
    bool indexed = false;                       // the prefix index can find it
    std::list<BlockId>::iterator lru_position;  // valid while cached
  };

  BlockPool(const BlockPoolOptions& options, std::unique_ptr<PageMemory> memory);
  void release(BlockId id);
  void release_tail(uint32_t slot);
  BlockId take();
  void make_free(BlockId id);
  void poison_block(BlockId id);
  void check_poison(BlockId id) const;
  Block& block(BlockId id);

  // For the prefix index.
  void set_indexed(BlockId id);
  void clear_indexed(BlockId id);  // a cached block becomes free
  void on_evict(std::function<void(BlockId)> hook) { evict_ = std::move(hook); }

  const BlockPoolOptions options_;
  const std::unique_ptr<PageMemory> memory_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  std::vector<uint32_t> free_tails_;
  std::list<BlockId> lru_;  // cached blocks, oldest first
  std::function<void(BlockId)> evict_;
};

}  // namespace tandem::kv
