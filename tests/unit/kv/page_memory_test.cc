#include "common/kv/page_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/kv/block_pool.h"

namespace tandem::kv {
namespace {

constexpr KvLayout kLayout{.layers = 2, .kv_heads = 2, .head_dim = 8, .format = KvFormat::kInt4};

TEST(PageMemory, HostPagesAreCopiedPieceByPiece) {
  auto memory = create_host_page_memory(kLayout, 3, 2, {.huge_pages = false});
  ASSERT_TRUE(memory) << memory.error().to_string();
  EXPECT_EQ((*memory)->device(), "");
  EXPECT_EQ((*memory)->bytes(),
            3 * kLayout.block_bytes() + 2 * kLayout.tail_layout().block_bytes());
  EXPECT_EQ((*memory)->tail_bytes(), 2 * kLayout.tail_layout().block_bytes());
  auto buffer = (*memory)->host_buffer(64);
  ASSERT_TRUE(buffer);
  std::fill((*buffer)->bytes().begin(), (*buffer)->bytes().end(), std::byte{7});
  std::byte* page = (*memory)->pages() + kLayout.page_bytes();
  std::byte* tail = (*memory)->tails();
  const PageMemory::Piece in[] = {{page, (*buffer)->bytes().data(), 16},
                                  {tail, (*buffer)->bytes().data() + 16, 8}};
  ASSERT_TRUE((*memory)->from_host(in));
  EXPECT_EQ(std::count(page, page + kLayout.page_bytes(), std::byte{7}), 16);
  EXPECT_EQ(std::count(tail, tail + 32, std::byte{7}), 8);

  std::vector<std::byte> out(16);
  const PageMemory::Piece back{page, out.data(), out.size()};
  const auto ticket = (*memory)->start_to_host({&back, 1});
  ASSERT_TRUE(ticket);
  EXPECT_TRUE((*memory)->done(*ticket).value_or(false));
  EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{7}), 16);
}

TEST(PageMemory, SizesThatDoNotFitTheAddressSpaceAreRefused) {
  EXPECT_FALSE(page_bytes_of(kLayout, ~uint64_t{0} / 64, 0));
}

// A pool hands out blocks of memory that an engine made, and ends with it.
TEST(BlockPoolMemory, IsTheCallersWhenGiven) {
  auto memory = create_host_page_memory(kLayout, 3, 1, {.huge_pages = false});
  ASSERT_TRUE(memory);
  std::byte* const pages = (*memory)->pages();
  BlockPoolOptions options;
  options.layout = kLayout;
  options.blocks = 3;
  options.tails = 1;
  auto pool = BlockPool::create(options, std::move(*memory));
  ASSERT_TRUE(pool) << pool.error().to_string();
  EXPECT_EQ((*pool)->pages(), pages);
  auto blocks = (*pool)->allocate(3);
  ASSERT_TRUE(blocks);
  EXPECT_EQ((*pool)->page(1, (*blocks)[0].id()).data(),
            pages + (3 + (*blocks)[0].id().value) * kLayout.page_bytes());
  options.blocks = 0;
  auto none = create_host_page_memory(kLayout, 1, 1, {.huge_pages = false});
  EXPECT_FALSE(BlockPool::create(options, std::move(*none)));
}

}  // namespace
}  // namespace tandem::kv
