#include <algorithm>

#include "kernels/cuda/attention_decode.h"

namespace tandem::cuda {
namespace {

constexpr uint32_t kTokens = kv::kBlockTokens;
// 256 keys of one head are 128 KiB in bf16: a few microseconds of one multiprocessor's share of an
// H200's memory, against about one for what a unit costs besides.
constexpr uint32_t kFewestPages = 16;
// Where blocks have equal shares of many sequences, a few pages more cost a block less than heads
// cut into more splits.
constexpr uint32_t kFewestOfMany = 32;
// Longer contexts have units enough, and twice the pages cost one sequence little and eight less.
constexpr uint32_t kLongPages = 32;
constexpr uint32_t kLongContext = 4096;
// What merges the splits of a head is one block.
constexpr uint32_t kMostSplits = kDecodeMostSplits - 1;  // a window may lie across one cut more
constexpr uint32_t kFewestSplits = 8;
// Units of one long sequence, so that it has the whole card (an H200 has 132 multiprocessors).
constexpr uint32_t kUnitsOfOne = 132;
// What a unit costs besides its pages, in pages: loading queries, merging warps.
constexpr uint64_t kUnitPages = 4;

// DecodeUnit::first_column.
static_assert(kDecodeRows * kMaxHeads - kDecodeColumns <= UINT16_MAX);

constexpr uint32_t divided_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
// Cuts at multiples of a block's walkers give all of them the same number of pages.
constexpr uint32_t walkers_of(const DecodeShape& shape) { return decode_walkers(shape.head_dim); }
constexpr uint32_t up_to_walkers(const DecodeShape& shape, uint32_t pages) {
  return divided_up(pages, walkers_of(shape)) * walkers_of(shape);
}
constexpr uint32_t near_walkers(const DecodeShape& shape, uint32_t pages) {
  return (pages + walkers_of(shape) / 2) / walkers_of(shape) * walkers_of(shape);
}
constexpr uint32_t fewest_pages(const DecodeShape& shape) {
  return near_walkers(shape, kFewestPages);
}
uint32_t pages_of(uint32_t keys) { return divided_up(keys, kTokens); }

bool read_exactly(const DecodeShape& shape) {
  return kv::KvLayout{1, 1, 2, shape.format}.needs_tail();
}

// Units of one KV head without its splits, at most: of slots whose rows are together `rows`, each
// cut once where it may be.
size_t most_tiles(const DecodeShape& shape, uint32_t sequences, uint32_t rows) {
  const uint32_t group = shape.group();
  const size_t runs = std::min(rows, read_exactly(shape) ? 2 * sequences : sequences);
  return std::min(size_t{rows} * divided_up(group, kDecodeColumns),
                  (size_t{rows} * group + runs * (kDecodeColumns - 1)) / kDecodeColumns);
}

uint32_t most_splits(const DecodeShape& shape) {
  return std::clamp(kUnitsOfOne / shape.kv_heads, kFewestSplits, kMostSplits);
}

// Rows of one slot whose columns share units; where they read a page exactly, it is the same.
struct Rows {
  uint32_t first = 0;  // in the slot
  uint32_t count = 0;
};
// The next ones at or behind `first`.
Rows rows_at(const DecodeShape& shape, const SequenceSlot& slot, uint32_t first) {
  const uint32_t left = slot.rows - first;
  const uint32_t in_page = kTokens - (slot.start + first) % kTokens;
  return {first, read_exactly(shape) ? std::min(left, in_page) : left};
}

// What the queries of one unit read as stored.
struct Span {
  uint32_t begin = 0;  // pages
  uint32_t end = 0;
  uint32_t context = 0;  // keys up to the last query's own
};
Span span_of(const DecodeShape& shape, uint32_t first, uint32_t last) {
  const uint32_t from = shape.window == 0 || first < shape.window ? 0 : first + 1 - shape.window;
  return {from / kTokens, last / kTokens + (read_exactly(shape) ? 0 : 1), last + 1};
}

class Planner {
 public:
  Planner(const DecodeShape& shape, uint32_t blocks, DecodePlan& plan)
      : shape_(shape), blocks_(blocks), plan_(plan) {}

  void run(std::span<const SequenceSlot> slots) {
    const bool few = slots.size() <= kDecodeFewSequences;
    if (!few) count(slots);
    for (uint32_t i = 0; i < slots.size(); ++i) {
      Rows rows;
      for (uint32_t r = 0; r < slots[i].rows; r += rows.count) {
        rows = rows_at(shape_, slots[i], r);
        for (uint32_t head = 0; head < shape_.kv_heads; ++head)
          add_head(slots[i], i, rows, head, few);
      }
    }
    if (few) share();
    while (block_ + 1 <= blocks_)
      plan_.ranges[++block_] = static_cast<uint32_t>(plan_.units.size());
  }

 private:
  void add_head(const SequenceSlot& slot, uint32_t index, const Rows& rows, uint32_t head,
                bool few) {
    for (uint32_t column = 0; column < rows.count * shape_.group(); column += kDecodeColumns) {
      DecodeUnit unit;
      unit.slot = index;
      unit.row = slot.first_row + rows.first;
      unit.start = slot.start + rows.first;
      unit.rows = rows.count;
      unit.kv_head = static_cast<uint16_t>(head);
      unit.first_column = static_cast<uint16_t>(column);
      const Span span = span_of_columns(unit);
      if (few)
        cut_alone(slot, unit, span);
      else
        cut_evenly(slot, unit, span);
      finish(slot);
    }
  }
  Span span_of_columns(const DecodeUnit& unit) const {
    const uint32_t all = unit.rows * shape_.group();
    const uint32_t last = std::min(all, unit.first_column + kDecodeColumns) - 1;
    return span_of(shape_, unit.start + unit.first_column / shape_.group(),
                   unit.start + last / shape_.group());
  }

  void add(const SequenceSlot& slot, DecodeUnit unit, uint32_t begin, uint32_t end) {
    unit.first_page = begin;
    unit.blocks = slot.first_block + begin;
    unit.pages = end - begin;
    plan_.units.push_back(unit);
  }

  // Splits lie at fixed places whatever the window hides of them. A sequence whose only page is its
  // open one still has a unit, without stored pages.
  void cut_alone(const SequenceSlot& slot, const DecodeUnit& unit, const Span& span) {
    const uint32_t split = decode_split_pages(shape_, span.context);
    uint32_t at = span.begin;
    do {
      const uint32_t end = std::min((at / split + 1) * split, span.end);
      add(slot, unit, at, std::max(at, end));
      at = end;
    } while (at < span.end);
  }

  void count(std::span<const SequenceSlot> slots) {
    for (const SequenceSlot& slot : slots) {
      Rows rows;
      for (uint32_t r = 0; r < slot.rows; r += rows.count) {
        rows = rows_at(shape_, slot, r);
        DecodeUnit unit;
        unit.start = slot.start + r;
        unit.rows = rows.count;
        for (uint32_t c = 0; c < rows.count * shape_.group(); c += kDecodeColumns) {
          unit.first_column = static_cast<uint16_t>(c);
          const Span span = span_of_columns(unit);
          left_ += (span.end - span.begin + kUnitPages) * shape_.kv_heads;
        }
      }
    }
    share_ = left_ / blocks_;
  }
  // Consecutive pages to each block, cut where it has its share of what was left before it.
  void cut_evenly(const SequenceSlot& slot, const DecodeUnit& unit, const Span& span) {
    const uint32_t fewest =
        std::max(near_walkers(shape_, kFewestOfMany),
                 up_to_walkers(shape_, divided_up(span.end - span.begin, kMostSplits)));
    uint32_t at = span.begin;
    do {
      const uint32_t pages = span.end - at;
      const bool last = block_ + 1 == blocks_;
      const auto room =
          static_cast<uint32_t>(share_ > used_ + kUnitPages ? share_ - used_ - kUnitPages : 0);
      if (!last && used_ > 0 && room < std::min(pages, fewest) / 2) {
        next_block();
        continue;
      }
      const uint32_t nearest = near_walkers(shape_, room);
      const uint32_t take =
          last || pages <= room + fewest / 2 ? pages : std::min(pages, std::max(fewest, nearest));
      add(slot, unit, at, at + take);
      at += take;
      used_ += take + kUnitPages;
      left_ -= take + (at == span.end ? kUnitPages : 0);
    } while (at < span.end);
  }
  void next_block() {
    plan_.ranges[++block_] = static_cast<uint32_t>(plan_.units.size());
    share_ = left_ / (blocks_ - block_);
    used_ = 0;
  }

  // The units added since the last call are all splits of one head's columns.
  void finish(const SequenceSlot& slot) {
    const auto splits = static_cast<uint16_t>(plan_.units.size() - finished_);
    for (uint16_t s = 0; s < splits; ++s) {
      DecodeUnit& unit = plan_.units[finished_ + s];
      unit.split = s;
      unit.splits = splits;
      unit.partial = partials_;
      unit.counter = counters_;
      unit.exact = read_exactly(shape_) && s + 1 == splits ? 1 + slot.tail : 0;
    }
    if (splits > 1) {
      partials_ += splits;
      ++counters_;
    }
    finished_ = plan_.units.size();
  }

  // Consecutive units to each block, as equal in pages as they allow: a unit goes where its middle
  // lies.
  void share() {
    uint64_t total = 0;
    for (const DecodeUnit& unit : plan_.units) total += unit.pages + kUnitPages;
    uint64_t before = 0;
    for (uint32_t u = 0; u < plan_.units.size(); ++u) {
      const uint64_t cost = plan_.units[u].pages + kUnitPages;
      const auto at = static_cast<uint32_t>((2 * before + cost) * blocks_ / (2 * total));
      while (block_ < std::min(at, blocks_ - 1)) plan_.ranges[++block_] = u;
      before += cost;
    }
  }

  const DecodeShape& shape_;
  uint32_t blocks_;
  DecodePlan& plan_;
  uint32_t block_ = 0;  // whose units are being added; its range begins at ranges[block_]
  size_t finished_ = 0;
  uint32_t partials_ = 0;
  uint32_t counters_ = 0;
  // cut_evenly(), in pages:
  uint64_t left_ = 0;   // what was not given out yet
  uint64_t share_ = 0;  // of the block
  uint64_t used_ = 0;   // of it
};

}  // namespace

uint32_t decode_split_pages(const DecodeShape& shape, uint32_t context) {
  // Not up to a multiple of the walkers: every multiprocessor has a unit, however long the context.
  const uint32_t split = divided_up(pages_of(context), most_splits(shape));
  return std::max(context > kLongContext ? near_walkers(shape, kLongPages) : fewest_pages(shape),
                  split);
}

uint32_t decode_blocks(uint32_t rows, uint32_t multiprocessors) {
  // Up to four rows, one block leaves room for the projections before and behind it.
  constexpr uint32_t kOneBlock = 4;
  return rows > kOneBlock ? 2 * multiprocessors : multiprocessors;
}

DecodeLimits decode_limits(const DecodeShape& shape, const DecodeSteps& steps) {
  const uint32_t pages = std::max(pages_of(steps.max_context), 1U);
  // A window may lie across one cut more than its length says.
  const size_t splits =
      std::min(divided_up(pages, fewest_pages(shape)), most_splits(shape)) + size_t{1};
  const auto tiles_of = [&](uint32_t sequences) {
    const uint32_t rows = std::min(steps.rows, sequences * steps.sequence_rows);
    return most_tiles(shape, sequences, rows) * shape.kv_heads;
  };
  const size_t tiles = tiles_of(steps.sequences);
  const size_t few = tiles_of(std::min(steps.sequences, kDecodeFewSequences)) * splits;
  const size_t many = steps.sequences > kDecodeFewSequences ? tiles + steps.blocks : 0;
  const size_t units = std::max(few, many);
  return {units, units, tiles};
}

size_t decode_partial_bytes(const DecodeShape& shape, size_t partials) {
  return partials * kDecodeColumns * (shape.head_dim + 2) * sizeof(float);
}

void plan_decode(const DecodeShape& shape, std::span<const SequenceSlot> slots, uint32_t blocks,
                 DecodePlan& plan) {
  plan.units.clear();
  plan.ranges.assign(size_t{blocks} + 1, 0);
  Planner(shape, blocks, plan).run(slots);
}

}  // namespace tandem::cuda
