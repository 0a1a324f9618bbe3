#include "common/kv/block_pool.h"

#include <algorithm>
#include <string>

#include "common/base/check.h"

namespace tandem::kv {
namespace {

constexpr std::byte kPoison{0xA5};

Status check(const BlockPoolOptions& options) {
  TANDEM_TRY(validate(options.layout));
  if (options.blocks == 0) {
    return fail(ErrorCode::kInvalidArgument, "KV pool: at least one block is needed", "blocks");
  }
  if (options.layout.needs_tail() == (options.tails > 0)) return {};
  return fail(ErrorCode::kInvalidArgument,
              options.tails > 0 ? "KV pool: this format keeps no open pages, so tails must be 0"
                                : "KV pool: this format needs at least one tail slot",
              "tails");
}

bool all_poison(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kPoison; });
}

}  // namespace

void BlockHandle::reset() {
  if (BlockPool* pool = std::exchange(pool_, nullptr)) pool->release(id_);
}

void TailHandle::reset() {
  if (BlockPool* pool = std::exchange(pool_, nullptr)) pool->release_tail(slot_);
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    clear();
    handles_ = std::move(other.handles_);
    ids_ = std::move(other.ids_);
    tail = std::move(other.tail);
    other.clear();
  }
  return *this;
}

void BlockTable::append(BlockHandle block) {
  TANDEM_CHECK(static_cast<bool>(block), "an empty handle cannot hold a place in a table");
  ids_.push_back(block.id());
  handles_.push_back(std::move(block));
}

void BlockTable::append(std::vector<BlockHandle> blocks) {
  for (BlockHandle& block : blocks) append(std::move(block));
}

void BlockTable::truncate(size_t blocks) {
  while (handles_.size() > blocks) {
    handles_.pop_back();
    ids_.pop_back();
  }
}

void BlockTable::clear() {
  tail.reset();
  truncate(0);
}

Result<std::unique_ptr<BlockPool>> BlockPool::create(const BlockPoolOptions& options) {
  TANDEM_TRY(check(options));
  TANDEM_ASSIGN(auto memory, create_host_page_memory(options.layout, options.blocks, options.tails,
                                                     options.memory));
  return create(options, std::move(memory));
}

Result<std::unique_ptr<BlockPool>> BlockPool::create(const BlockPoolOptions& options,
                                                     std::unique_ptr<PageMemory> memory) {
  TANDEM_TRY(check(options));
  TANDEM_ASSIGN(const PageBytes bytes,
                page_bytes_of(options.layout, options.blocks, options.tails));
  TANDEM_CHECK(memory->bytes() >= bytes.pages + bytes.tails, "KV memory smaller than its pool");
  TANDEM_CHECK(!options.poison || memory->device().empty(), "only host memory can be poisoned");
  return std::unique_ptr<BlockPool>(new BlockPool(options, std::move(memory)));
}

BlockPool::BlockPool(const BlockPoolOptions& options, std::unique_ptr<PageMemory> memory)
    : options_(options), memory_(std::move(memory)), blocks_(options.blocks) {
  free_.reserve(options.blocks);
  for (uint32_t i = options.blocks; i > 0; --i) free_.push_back(BlockId{i - 1});
  for (uint32_t i = options.tails; i > 0; --i) free_tails_.push_back(i - 1);
  if (!options_.poison) return;
  for (uint32_t i = 0; i < options.blocks; ++i) poison_block(BlockId{i});
  for (uint32_t layer = 0; layer < options.layout.layers; ++layer)
    for (uint32_t i = 0; i < options.tails; ++i) std::ranges::fill(tail_page(layer, i), kPoison);
}

BlockPool::~BlockPool() {
  TANDEM_CHECK(held_blocks() == 0, "KV blocks are still held while their pool is destroyed");
  TANDEM_CHECK(free_tails() == options_.tails,
               "tail slots are still held while their pool is destroyed");
}

BlockPool::Block& BlockPool::block(BlockId id) {
  TANDEM_CHECK(id.value < blocks_.size(), "block id outside its pool");
  return blocks_[id.value];
}

uint32_t BlockPool::references(BlockId id) const {
  TANDEM_CHECK(id.value < blocks_.size(), "block id outside its pool");
  return blocks_[id.value].references;
}

std::span<std::byte> BlockPool::page(uint32_t layer, BlockId id) const {
  TANDEM_CHECK(layer < options_.layout.layers && id.value < options_.blocks,
               "page outside its pool");
  const size_t bytes = options_.layout.page_bytes();
  return {pages() + (size_t{layer} * options_.blocks + id.value) * bytes, bytes};
}

std::span<std::byte> BlockPool::tail_page(uint32_t layer, uint32_t slot) const {
  TANDEM_CHECK(layer < options_.layout.layers && slot < options_.tails,
               "tail page outside its pool");
  const size_t bytes = options_.layout.tail_layout().page_bytes();
  return {tail_pages() + (size_t{layer} * options_.tails + slot) * bytes, bytes};
}

BlockId BlockPool::take() {
  if (free_.empty()) {
    const BlockId oldest = lru_.front();
    TANDEM_CHECK(evict_ != nullptr, "a cached block without an index");
    evict_(oldest);  // ends in clear_indexed(), which frees it
  }
  const BlockId id = free_.back();
  free_.pop_back();
  if (options_.poison) check_poison(id);
  block(id).references = 1;
  return id;
}

Result<std::vector<BlockHandle>> BlockPool::allocate(size_t count) {
  if (count > available_blocks()) {
    return fail(ErrorCode::kResourceExhausted, "KV pool: " + std::to_string(count) +
                                                   " blocks wanted, " +
                                                   std::to_string(available_blocks()) + " of " +
                                                   std::to_string(capacity()) + " available");
  }
  std::vector<BlockHandle> handles;
  handles.reserve(count);
  for (size_t i = 0; i < count; ++i) handles.push_back(BlockHandle(this, take()));
  return handles;
}

Result<BlockHandle> BlockPool::allocate_one() {
  TANDEM_ASSIGN(std::vector<BlockHandle> handles, allocate(1));
  return std::move(handles.front());
}

Result<TailHandle> BlockPool::allocate_tail() {
  if (free_tails_.empty()) {
    return fail(ErrorCode::kResourceExhausted,
                "KV pool: all " + std::to_string(options_.tails) + " tail slots are in use");
  }
  const uint32_t slot = free_tails_.back();
  free_tails_.pop_back();
  if (options_.poison) {
    for (uint32_t layer = 0; layer < options_.layout.layers; ++layer) {
      TANDEM_CHECK(all_poison(tail_page(layer, slot)), "a free tail slot was written to");
    }
  }
  return TailHandle(this, slot);
}

BlockHandle BlockPool::share(BlockId id) {
  Block& b = block(id);
  TANDEM_CHECK(b.references > 0 || b.indexed, "a free block cannot be shared");
  if (b.references == 0) lru_.erase(b.lru_position);
  ++b.references;
  return BlockHandle(this, id);
}

void BlockPool::release(BlockId id) {
  Block& b = block(id);
  TANDEM_CHECK(b.references > 0, "a block was released more often than held");
  if (--b.references > 0) return;
  if (b.indexed) {
    b.lru_position = lru_.insert(lru_.end(), id);
  } else {
    make_free(id);
  }
}

void BlockPool::release_tail(uint32_t slot) {
  if (options_.poison) {
    for (uint32_t layer = 0; layer < options_.layout.layers; ++layer) {
      std::ranges::fill(tail_page(layer, slot), kPoison);
    }
  }
  free_tails_.push_back(slot);
}

void BlockPool::make_free(BlockId id) {
  if (options_.poison) poison_block(id);
  free_.push_back(id);
}

void BlockPool::set_indexed(BlockId id) {
  Block& b = block(id);
  TANDEM_CHECK(b.references > 0, "only a held block can enter the prefix index");
  b.indexed = true;
}

void BlockPool::clear_indexed(BlockId id) {
  Block& b = block(id);
  TANDEM_CHECK(b.indexed, "the block is not in the prefix index");
  b.indexed = false;
  if (b.references > 0) return;
  lru_.erase(b.lru_position);
  make_free(id);
}

void BlockPool::poison_block(BlockId id) {
  for (uint32_t layer = 0; layer < options_.layout.layers; ++layer) {
    std::ranges::fill(page(layer, id), kPoison);
  }
}

void BlockPool::check_poison(BlockId id) const {
  for (uint32_t layer = 0; layer < options_.layout.layers; ++layer) {
    TANDEM_CHECK(all_poison(page(layer, id)), "a free KV block was written to");
  }
}

}  // namespace tandem::kv
