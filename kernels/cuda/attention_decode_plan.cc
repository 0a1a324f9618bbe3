#include <algorithm>

#include "kernels/cuda/attention_decode.h"

namespace tandem::cuda {
namespace {

constexpr uint32_t kTokens = kv::kBlockTokens;
// Splits of contexts up to kLongContext, and how many a longer one may have before they grow. 256
// keys of one head are 128 KiB in bf16, a few microseconds of one SM's share of an H200's memory;
// one sequence of 8k on four KV heads still spreads over half of its SMs.
constexpr uint32_t kFewestPages = 16;
constexpr uint32_t kMostSplits = 32;
constexpr uint32_t kLongContext = 4096;
// What a unit costs besides its pages, in pages: loading queries, merging warps.
constexpr uint64_t kUnitPages = 4;

uint32_t pages_of(uint32_t keys) { return (keys + kTokens - 1) / kTokens; }

bool read_exactly(const DecodeShape& shape) {
  return kv::KvLayout{1, 1, 2, shape.format}.needs_tail();
}

struct Cut {
  uint32_t begin = 0;  // pages read as stored
  uint32_t end = 0;
  uint32_t split_pages = 0;
  uint32_t first_split = 0;
  uint32_t splits = 0;
};

// Splits lie at fixed places whatever the window hides of them.
Cut cut(const DecodeShape& shape, const SequenceSlot& slot) {
  const uint32_t last = slot.start + slot.rows - 1;
  const uint32_t from =
      shape.window == 0 || slot.start < shape.window ? 0 : slot.start + 1 - shape.window;
  Cut c;
  c.begin = from / kTokens;
  c.end = read_exactly(shape) ? last / kTokens : last / kTokens + 1;
  c.split_pages = decode_split_pages(slot.start + slot.rows);
  c.first_split = c.begin / c.split_pages;
  const uint32_t end_split = (c.end + c.split_pages - 1) / c.split_pages;
  // A sequence whose only page is its open one still has a unit, without stored pages.
  c.splits = c.end > c.begin ? end_split - c.first_split : 1;
  return c;
}

void add_units(const DecodeShape& shape, uint32_t index, const SequenceSlot& slot,
               uint32_t tile_columns, DecodePlan& plan, uint32_t& partials, uint32_t& counters) {
  const Cut c = cut(shape, slot);
  const uint32_t columns = slot.rows * shape.group();
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (uint32_t column = 0; column < columns; column += tile_columns) {
      for (uint32_t s = 0; s < c.splits; ++s) {
        DecodeUnit unit;
        unit.slot = index;
        unit.first_row = slot.first_row;
        unit.rows = slot.rows;
        unit.start = slot.start;
        unit.kv_head = static_cast<uint16_t>(head);
        unit.first_column = static_cast<uint16_t>(column);
        const uint32_t at = (c.first_split + s) * c.split_pages;
        unit.first_page = std::max(at, c.begin);
        unit.blocks = slot.first_block + unit.first_page;
        unit.pages = c.end > c.begin ? std::min(at + c.split_pages, c.end) - unit.first_page : 0;
        unit.partial = partials;
        unit.split = static_cast<uint16_t>(s);
        unit.splits = static_cast<uint16_t>(c.splits);
        unit.counter = counters;
        unit.exact = read_exactly(shape) && s + 1 == c.splits ? 1 : 0;
        plan.units.push_back(unit);
      }
      if (c.splits > 1) {
        partials += c.splits;
        ++counters;
      }
    }
  }
}

}  // namespace

uint32_t decode_columns(const DecodeShape& shape, uint32_t max_rows) {
  const uint32_t columns = std::max(max_rows, 1U) * shape.group();
  // Accumulators of 32 columns of 128 channels, or 16 of 256, fill the registers.
  const uint32_t most = shape.head_dim > 128 ? 16 : 32;
  for (uint32_t tile = 8; tile < most; tile *= 2)
    if (columns <= tile) return tile;
  return most;
}

uint32_t decode_split_pages(uint32_t context) {
  const uint32_t pages = pages_of(context);
  uint32_t split = kFewestPages;
  if (context <= kLongContext) return split;
  split *= 2;
  while (pages > split * kMostSplits) split *= 2;
  return split;
}

DecodeLimits decode_limits(const DecodeShape& shape, uint32_t sequences, uint32_t rows,
                           uint32_t max_context) {
  const uint32_t tile = decode_columns(shape, rows);
  const size_t groups = size_t{sequences} * shape.kv_heads *
                        ((size_t{std::max(rows, 1U)} * shape.group() + tile - 1) / tile);
  const uint32_t pages = std::max(pages_of(max_context), 1U);
  const uint32_t splits =
      max_context <= kLongContext ? (pages - 1) / kFewestPages + 1 : kMostSplits;
  return {groups * splits, groups * splits, groups};
}

size_t decode_partial_bytes(const DecodeShape& shape, uint32_t max_rows, size_t partials) {
  return partials * decode_columns(shape, max_rows) * (shape.head_dim + 2) * sizeof(float);
}

void plan_decode(const DecodeShape& shape, std::span<const SequenceSlot> slots, uint32_t max_rows,
                 uint32_t blocks, DecodePlan& plan) {
  plan.units.clear();
  plan.ranges.assign(size_t{blocks} + 1, 0);
  const uint32_t columns = decode_columns(shape, max_rows);
  uint32_t partials = 0;
  uint32_t counters = 0;
  for (uint32_t i = 0; i < slots.size(); ++i)
    if (slots[i].rows != 0) add_units(shape, i, slots[i], columns, plan, partials, counters);

  // Consecutive units to each block, as equal in pages as they allow: a unit goes where its middle
  // lies.
  uint64_t total = 0;
  for (const DecodeUnit& unit : plan.units) total += unit.pages + kUnitPages;
  uint64_t before = 0;
  uint32_t block = 0;
  for (uint32_t u = 0; u < plan.units.size(); ++u) {
    const uint64_t cost = plan.units[u].pages + kUnitPages;
    const auto at = static_cast<uint32_t>((2 * before + cost) * blocks / (2 * total));
    while (block < std::min(at, blocks - 1)) plan.ranges[++block] = u;
    before += cost;
  }
  while (block < blocks) plan.ranges[++block] = static_cast<uint32_t>(plan.units.size());
}

}  // namespace tandem::cuda
