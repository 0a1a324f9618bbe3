#include "common/kv/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tandem::kv {
namespace {

constexpr KvLayout kSmall{2, 1, 32, KvFormat::kInt8};

std::unique_ptr<BlockPool> pool_of(uint32_t blocks, KvFormat format = KvFormat::kInt8,
                                   uint32_t tails = 0) {
  BlockPoolOptions options;
  options.layout = kSmall;
  options.layout.format = format;
  options.blocks = blocks;
  options.tails = tails;
  options.poison = true;
  return BlockPool::create(options).value();
}

TEST(BlockPool, EveryBlockIsHandedOutOnceAndReturns) {
  auto pool = pool_of(5);
  {
    auto all = pool->allocate(5).value();
    std::set<uint32_t> ids;
    for (const BlockHandle& h : all) ids.insert(h.id().value);
    EXPECT_EQ(ids.size(), 5u);
    EXPECT_EQ(pool->held_blocks(), 5u);
    EXPECT_EQ(pool->available_blocks(), 0u);
  }
  EXPECT_EQ(pool->held_blocks(), 0u);
  EXPECT_EQ(pool->free_blocks(), 5u);
}

TEST(BlockPool, ExhaustionIsAnErrorAndTakesNothing) {
  auto pool = pool_of(3);
  auto two = pool->allocate(2).value();
  const auto more = pool->allocate(2);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(more.error().detail.find("2 blocks wanted, 1 of 3"), std::string::npos);
  EXPECT_EQ(pool->free_blocks(), 1u);
  EXPECT_TRUE(pool->allocate_one());
}

TEST(BlockPool, ASharedBlockIsFreeOnlyAfterItsLastHandle) {
  auto pool = pool_of(2);
  BlockHandle first = pool->allocate_one().value();
  BlockHandle second = pool->share(first.id());
  EXPECT_EQ(pool->references(first.id()), 2u);
  first.reset();
  EXPECT_EQ(pool->held_blocks(), 1u);
  BlockHandle moved = std::move(second);
  EXPECT_FALSE(second);  // NOLINT(bugprone-use-after-move): the moved-from state is the subject
  moved.reset();
  EXPECT_EQ(pool->free_blocks(), 2u);
}

TEST(BlockPool, PagesTileTheRegionInTheEnginesOrder) {
  auto pool = pool_of(4);
  const size_t bytes = pool->layout().page_bytes();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t b = 0; b < 4; ++b) {
      const auto page = pool->page(layer, BlockId{b});
      EXPECT_EQ(page.size(), bytes);
      EXPECT_EQ(page.data(), pool->pages() + (size_t{layer} * 4 + b) * bytes);
    }
  }
  EXPECT_EQ(pool->memory_bytes(), 2 * 4 * bytes);
}

TEST(BlockPool, TailSlotsAreBoundedAndReturn) {
  auto pool = pool_of(2, KvFormat::kInt4, 2);
  TailHandle a = pool->allocate_tail().value();
  TailHandle b = pool->allocate_tail().value();
  EXPECT_NE(a.slot(), b.slot());
  const auto third = pool->allocate_tail();
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kResourceExhausted);
  const auto page = pool->tail_page(1, b.slot());
  EXPECT_EQ(page.size(), pool->layout().tail_layout().page_bytes());
  EXPECT_EQ(page.data(), pool->tail_pages() + (size_t{1} * 2 + b.slot()) * page.size());
  std::ranges::fill(page, std::byte{7});
  b.reset();
  EXPECT_TRUE(pool->allocate_tail());
}

TEST(BlockPool, TailsMustFitTheFormat) {
  BlockPoolOptions options{.layout = kSmall, .blocks = 4, .tails = 1};
  EXPECT_EQ(BlockPool::create(options).error().param, "tails");
  options.layout.format = KvFormat::kInt4;
  options.tails = 0;
  EXPECT_EQ(BlockPool::create(options).error().param, "tails");
}

TEST(BlockPool, MemoryThatCannotBeMappedIsAnError) {
  BlockPoolOptions options{.layout = {1024, 64, 4096, KvFormat::kF32}, .blocks = 0xffffffffu};
  const auto pool = BlockPool::create(options);
  ASSERT_FALSE(pool);
  EXPECT_TRUE(pool.error().code == ErrorCode::kResourceExhausted ||
              pool.error().code == ErrorCode::kInvalidArgument);
  EXPECT_EQ(BlockPool::create({.layout = kSmall, .blocks = 0}).error().param, "blocks");
}

TEST(BlockTable, KeepsPositionsAndReleasesFromTheBack) {
  auto pool = pool_of(6);
  BlockTable table;
  table.append(pool->allocate(4).value());
  EXPECT_EQ(table.size(), 4u);
  const BlockId first = table.ids()[0];
  table.truncate(1);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table.ids()[0], first);
  BlockTable other = std::move(table);
  EXPECT_EQ(pool->held_blocks(), 1u);
  other = BlockTable();
  EXPECT_EQ(pool->held_blocks(), 0u);
}

TEST(BlockPoolDeathTest, AWriteToAFreeBlockIsCaughtBeforeReuse) {
  auto pool = pool_of(1);
  const BlockId id = pool->allocate_one().value().id();
  pool->page(1, id)[5] = std::byte{0};  // the handle is gone: a late writer
  EXPECT_DEATH((void)pool->allocate_one(), "a free KV block was written to");
  std::ranges::fill(pool->page(1, id), std::byte{0xA5});
}

}  // namespace
}  // namespace tandem::kv
