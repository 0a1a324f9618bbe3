#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/cuda/attention_prefill.h"

namespace tandem::cuda {
namespace {

constexpr size_t kL2 = size_t{50} << 20;

std::vector<PrefillTile> plan(const PrefillShape& shape,
                              const std::vector<PrefillSequence>& sequences, size_t l2 = kL2) {
  std::vector<PrefillTile> tiles;
  plan_prefill(shape, sequences, l2, tiles);
  return tiles;
}

TEST(PrefillPlan, CoversEveryRowAndHeadOnce) {
  const PrefillShape shape{.heads = 6, .kv_heads = 2, .head_dim = 128};
  const std::vector<PrefillSequence> sequences = {
      {.first_row = 0, .rows = 300, .start = 0, .kv_offset = 0},
      {.first_row = 300, .rows = 1, .start = 77, .kv_offset = 384},
      {.first_row = 301, .rows = 0, .start = 5, .kv_offset = 512},
      {.first_row = 301, .rows = 257, .start = 1003, .kv_offset = 640}};
  const std::vector<PrefillTile> tiles = plan(shape, sequences);
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (const PrefillTile& tile : tiles) {
    EXPECT_GT(tile.rows, 0U);
    EXPECT_LE(tile.rows, prefill_tile_rows(shape.head_dim));
    for (uint32_t r = 0; r < tile.rows; ++r) {
      const uint32_t row = tile.row + r;
      EXPECT_TRUE(seen.emplace(tile.head, row).second);
      const PrefillSequence& s = sequences[row < 300 ? 0 : row == 300 ? 1 : 3];
      EXPECT_EQ(tile.position + r, s.start + row - s.first_row);
      EXPECT_EQ(tile.kv_offset, s.kv_offset);
    }
  }
  EXPECT_EQ(seen.size(), size_t{6} * 558);
  EXPECT_LE(tiles.size(), prefill_max_tiles(shape, 558, 4));
}

TEST(PrefillPlan, SizesTheTileBuffer) {
  const PrefillShape shape{.heads = 2, .kv_heads = 1, .head_dim = 64};
  for (uint32_t rows = 1; rows < 600; rows += 7)
    for (uint32_t start = 0; start < 40; start += 3) {
      const std::vector<PrefillSequence> two = {
          {.first_row = 0, .rows = rows, .start = start},
          {.first_row = rows, .rows = rows + 5, .start = start + 1, .kv_offset = 1024}};
      EXPECT_LE(plan(shape, two).size(), prefill_max_tiles(shape, 2 * rows + 5, 2));
    }
}

TEST(PrefillPlan, KeepsPagesWhole) {
  const PrefillShape shape{.heads = 1, .kv_heads = 1, .head_dim = 128};
  const std::vector<PrefillTile> tiles =
      plan(shape, {{.first_row = 0, .rows = 1000, .start = 21, .exact_offset = 256}});
  for (const PrefillTile& tile : tiles) {
    EXPECT_TRUE(tile.position == 21 || tile.position % 16 == 0) << tile.position;
    // The exact workspace begins with the page of the first row.
    EXPECT_EQ(tile.exact_offset, 256 + tile.position / 16 * 16 - 16);
    EXPECT_LE(tile.position % 16 + tile.rows, prefill_tile_rows(128));
  }
}

TEST(PrefillPlan, TakesCostlyTilesFirstAndHeadsOfAGroupTogether) {
  const PrefillShape shape{.heads = 4, .kv_heads = 2, .head_dim = 128};
  const std::vector<PrefillTile> tiles =
      plan(shape, {{.rows = 512, .start = 0},
                   {.first_row = 512, .rows = 128, .start = 4096, .kv_offset = 512}});
  for (size_t i = 1; i < tiles.size(); ++i)
    EXPECT_GE(tiles[i - 1].position + tiles[i - 1].rows, tiles[i].position + tiles[i].rows);
  EXPECT_EQ(tiles.front().position, 4096U);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(tiles[i].head, i);
}

TEST(PrefillPlan, TakesOneKvHeadAfterTheOtherWhenKeysOutgrowTheCache) {
  const PrefillShape shape{.heads = 8, .kv_heads = 4, .head_dim = 128};
  // 100,096 positions of 512 bytes: 51 MB a head.
  const std::vector<PrefillTile> tiles = plan(shape, {{.rows = 2048, .start = 98'000}});
  std::map<uint32_t, size_t> last;
  std::map<uint32_t, size_t> first;
  for (size_t i = 0; i < tiles.size(); ++i) {
    last[tiles[i].head / 2] = i;
    first.try_emplace(tiles[i].head / 2, i);
  }
  for (uint32_t head = 1; head < 4; ++head) EXPECT_LT(last[head - 1], first[head]);
}

}  // namespace
}  // namespace tandem::cuda
