#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/moe.h"

namespace tandem::cuda {
namespace {

TEST(MoePlanTest, BuffersLieApartWithinTheirMemory) {
  for (const MoeShapes& shapes : {MoeShapes{64, 48, 8, 2, true}, MoeShapes{2048, 768, 128, 8, true},
                                  MoeShapes{32, 24, 6, 3, false}})
    for (const uint32_t rows : {1U, 17U, 512U}) {
      const size_t bytes = moe_buffer_bytes(shapes, rows);
      auto* base = reinterpret_cast<std::byte*>(size_t{1} << 20);
      const MoeBuffers b = moe_buffers(shapes, rows, base);
      const size_t members = size_t{rows} * shapes.experts_per_token;
      const auto hidden = static_cast<size_t>(shapes.hidden);
      const auto piece = [&](const auto* p, size_t count) {
        const auto begin = static_cast<size_t>(reinterpret_cast<const std::byte*>(p) - base);
        EXPECT_EQ(begin % 256, 0U);
        return std::pair{begin, begin + count * sizeof(*p)};
      };
      std::vector<std::pair<size_t, size_t>> pieces = {
          piece(b.normed, rows * hidden),
          piece(b.logits, size_t{rows} * shapes.experts),
          piece(b.chosen, members),
          piece(b.weights, members),
          piece(b.places, members),
          piece(b.member_row, members),
          piece(b.tiles, moe_max_tiles(shapes, rows)),
          piece(b.tile_count, 1),
          piece(b.inner, members * static_cast<size_t>(shapes.intermediate)),
          piece(b.results, members * hidden)};
      std::ranges::sort(pieces);
      for (size_t i = 1; i < pieces.size(); ++i) EXPECT_LE(pieces[i - 1].second, pieces[i].first);
      EXPECT_LE(pieces.back().second, bytes);
    }
}

// Whatever the choice, an expert's members fill whole tiles but one.
TEST(MoePlanTest, TilesSufficeForTheWorstChoice) {
  const MoeShapes shapes{64, 48, 8, 2, true};
  EXPECT_EQ(moe_max_tiles(shapes, 1), 2U);  // two experts, a row each
  EXPECT_GE(moe_max_tiles(shapes, 3), 6U);  // six experts
  // 130 members: 7 experts with one each, one with 123, i.e. two tiles.
  EXPECT_GE(moe_max_tiles(shapes, 65), 7U + 2U);
}

TEST(MoePlanTest, RefusesShapesTheKernelsDoNotTake) {
  EXPECT_TRUE(moe_takes({2048, 768, 128, 8, true}));
  EXPECT_FALSE(moe_takes({2048, 768, 1025, 8, true}));
  EXPECT_FALSE(moe_takes({2048, 768, 4, 5, true}));
  EXPECT_FALSE(moe_takes({2048, 768, 128, 33, true}));
  EXPECT_TRUE(moe_takes({25600, 768, 128, 8, true}));
  EXPECT_FALSE(moe_takes({25608, 768, 128, 8, true}));
  EXPECT_FALSE(moe_takes({2052, 768, 128, 8, true}));
  EXPECT_FALSE(moe_takes({2048, 764, 128, 8, true}));
  EXPECT_FALSE(moe_takes({2048, 768, 0, 0, true}));
}

}  // namespace
}  // namespace tandem::cuda
