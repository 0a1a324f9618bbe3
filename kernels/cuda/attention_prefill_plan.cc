#include <algorithm>

#include "common/kv/layout.h"
#include "kernels/cuda/attention_prefill.h"

namespace tandem::cuda {
namespace {

constexpr uint32_t kPageTokens = kv::kBlockTokens;

}  // namespace

uint32_t prefill_tile_rows(uint32_t head_dim) {
  // Two warpgroups of 64 rows; the plain kernel takes any number.
  (void)head_dim;
  return 128;
}

size_t prefill_max_tiles(const PrefillShape& shape, uint32_t rows, uint32_t sequences) {
  const uint32_t tile = prefill_tile_rows(shape.head_dim);
  // Of each sequence the first tile and the last one may be short.
  const size_t per_head = size_t{rows} / tile + 2 * size_t{std::min(rows, sequences)};
  return per_head * shape.heads;
}

void plan_prefill(const PrefillShape& shape, std::span<const PrefillSequence> sequences,
                  size_t l2_bytes, std::vector<PrefillTile>& tiles) {
  // Rows of a page stay together: then the exact keys of a tile are those of at most its own span.
  const uint32_t tile_rows = prefill_tile_rows(shape.head_dim);
  std::vector<PrefillTile> queries;
  size_t kv_rows = 0;
  for (const PrefillSequence& sequence : sequences) {
    const uint32_t end = sequence.start + sequence.rows;
    kv_rows += sequence.rows == 0 ? 0 : prefill_span(end);
    for (uint32_t position = sequence.start; position < end;) {
      const uint32_t page = position / kPageTokens * kPageTokens;
      PrefillTile tile;
      tile.row = sequence.first_row + position - sequence.start;
      tile.rows = std::min(end, page + tile_rows) - position;
      tile.position = position;
      tile.kv_offset = sequence.kv_offset;
      tile.exact_offset = sequence.exact_offset + page - sequence.start / kPageTokens * kPageTokens;
      queries.push_back(tile);
      position += tile.rows;
    }
  }
  std::ranges::stable_sort(queries, [](const PrefillTile& a, const PrefillTile& b) {
    return a.position + a.rows > b.position + b.rows;
  });

  // Half of the cache for keys and values: queries and results pass through it, too.
  const size_t head_bytes = std::max<size_t>(1, kv_rows * shape.head_dim * 2 * sizeof(uint16_t));
  const auto together =
      static_cast<uint32_t>(std::clamp<size_t>(l2_bytes / 2 / head_bytes, 1, shape.kv_heads));
  const uint32_t group = shape.heads / shape.kv_heads;
  tiles.reserve(tiles.size() + queries.size() * shape.heads);
  for (uint32_t first = 0; first < shape.kv_heads; first += together) {
    const uint32_t last = std::min(shape.kv_heads, first + together);
    for (const PrefillTile& query : queries) {
      for (uint32_t head = first * group; head < last * group; ++head) {
        tiles.push_back(query);
        tiles.back().head = head;
      }
    }
  }
}

}  // namespace tandem::cuda
