#include "common/engine/cpu/attention.h"

#include <algorithm>
#include <cmath>

namespace tandem::engine {
namespace {

constexpr uint32_t kTokens = kv::kBlockTokens;
constexpr uint32_t kPartition = cpu::kPartitionKeys;
// Queries of a tile share the conversion of keys and values to float; 32 tokens times the group
// make that a few percent of the work and still leave enough tiles for the threads.
constexpr uint32_t kTileTokens = 32;
// Sharing partitions costs a merge per row and partition: only for tiles of few rows.
constexpr int64_t kSharedRows = 64;

int64_t part_floats(int64_t rows, int64_t stride) { return rows * (2 + stride); }

}  // namespace

AttentionRunner::AttentionRunner(ThreadPool& pool, const cpu::KernelTable& kernels)
    : pool_(pool), kernels_(kernels), scratch_(pool.threads()) {}

void AttentionRunner::run(const StepView& step, uint32_t layer, const AttentionShape& shape,
                          Activation qkv, const KvPages& kv, const KvWriter& writer,
                          Activation out) {
  const Job job{step,
                layer,
                shape,
                qkv,
                kv,
                writer,
                out,
                shape.heads / shape.kv_heads,
                cpu::value_stride(shape.head_dim)};
  plan(job);
  share_partitions(job);
  // Tiles differ in cost, so they are claimed one at a time, the long ones first.
  std::atomic<size_t> next{0};
  const auto body = [&](uint32_t thread) {
    for (size_t i = next.fetch_add(1); i < items_.size(); i = next.fetch_add(1)) {
      const Tile& tile = tiles_[items_[i].tile];
      if (tile.part < 0)
        run_tile(job, tile, scratch_[thread]);
      else
        run_part(job, tile, items_[i].partition, scratch_[thread]);
    }
  };
  if (items_.size() > 1)
    pool_.run(body);
  else
    body(0);
  for (const Tile& tile : tiles_)
    if (tile.part >= 0) merge_parts(job, tile, scratch_[0]);
}

void AttentionRunner::plan(const Job& job) {
  // A layout with a tail shows a query its own page exactly and others as stored: then the queries
  // of a tile share one page.
  const uint32_t align = job.kv.layout.needs_tail() ? kTokens : kTileTokens;
  tiles_.clear();
  for (uint32_t s = 0; s < job.step.sequences.size(); ++s) {
    const SequenceView& sequence = job.step.sequences[s];
    const uint32_t stop = sequence.start + sequence.rows;
    for (uint32_t begin = sequence.start; begin < stop;) {
      const uint32_t end = std::min(stop, (begin / align + 1) * align);
      const uint32_t window = job.shape.window;
      const uint32_t first_key = window == 0 || begin < window ? 0 : begin - window + 1;
      Tile tile;
      tile.sequence = s;
      tile.begin = begin;
      tile.end = end;
      tile.first_partition = first_key / kPartition;
      tile.partitions = (end - 1) / kPartition + 1 - tile.first_partition;
      for (tile.kv_head = 0; tile.kv_head < job.shape.kv_heads; ++tile.kv_head)
        tiles_.push_back(tile);
      begin = end;
    }
  }
  std::ranges::stable_sort(tiles_, [](const Tile& a, const Tile& b) {
    return uint64_t{a.partitions} * (a.end - a.begin) > uint64_t{b.partitions} * (b.end - b.begin);
  });
}

// Decides which tiles hand out their partitions one by one.
void AttentionRunner::share_partitions(const Job& job) {
  const bool few = tiles_.size() < size_t{4} * pool_.threads() && pool_.threads() > 1;
  items_.clear();
  int64_t floats = 0;
  for (uint32_t t = 0; t < tiles_.size(); ++t) {
    Tile& tile = tiles_[t];
    if (!few || tile.partitions < 2 || rows(job, tile) > kSharedRows) {
      items_.push_back({t, 0});
      continue;
    }
    tile.part = floats;
    floats += tile.partitions * part_floats(rows(job, tile), job.stride);
    for (uint32_t p = 0; p < tile.partitions; ++p) items_.push_back({t, tile.first_partition + p});
  }
  if (parts_.size() < static_cast<size_t>(floats)) parts_.resize(static_cast<size_t>(floats));
}

AttentionRunner::State AttentionRunner::empty_state(const Job& job, int64_t rows,
                                                    std::vector<float>& memory) {
  const auto size = static_cast<size_t>(part_floats(rows, job.stride));
  if (memory.size() < size) memory.resize(size);
  std::fill_n(memory.begin(), rows, -INFINITY);
  std::fill_n(memory.begin() + rows, rows * (1 + job.stride), 0.0F);
  return {memory.data(), memory.data() + rows, memory.data() + 2 * rows};
}

void AttentionRunner::run_tile(const Job& job, const Tile& tile, Scratch& scratch) const {
  const State state = empty_state(job, rows(job, tile), scratch.state);
  gather_queries(job, tile, scratch);
  for (uint32_t p = 0; p < tile.partitions; ++p) {
    load_partition(job, tile, tile.first_partition + p, scratch);
    attend(job, tile, tile.first_partition + p, scratch, state);
  }
  write_out(job, tile, state);
}

void AttentionRunner::run_part(const Job& job, const Tile& tile, uint32_t partition,
                               Scratch& scratch) {
  const int64_t n = rows(job, tile);
  float* memory =
      parts_.data() + tile.part + (partition - tile.first_partition) * part_floats(n, job.stride);
  std::fill_n(memory, n, -INFINITY);
  std::fill_n(memory + n, n * (1 + job.stride), 0.0F);
  gather_queries(job, tile, scratch);
  load_partition(job, tile, partition, scratch);
  attend(job, tile, partition, scratch, state_at(memory, n));
}

void AttentionRunner::merge_parts(const Job& job, const Tile& tile, Scratch& scratch) const {
  const int64_t n = rows(job, tile);
  const State state = empty_state(job, n, scratch.state);
  for (uint32_t p = 0; p < tile.partitions; ++p) {
    const float* part = parts_.data() + tile.part + p * part_floats(n, job.stride);
    for (int64_t r = 0; r < n; ++r)
      kernels_.attention.merge(part[r], part[n + r], part + 2 * n + r * job.stride, job.stride,
                               state.max + r, state.sum + r, state.acc + r * job.stride);
  }
  write_out(job, tile, state);
}

void AttentionRunner::gather_queries(const Job& job, const Tile& tile, Scratch& scratch) const {
  const SequenceView& sequence = job.step.sequences[tile.sequence];
  const int64_t hd = job.shape.head_dim;
  scratch.q.resize(static_cast<size_t>(rows(job, tile) * hd));
  float* q = scratch.q.data();
  for (uint32_t position = tile.begin; position < tile.end; ++position) {
    const int64_t row = int64_t{sequence.first_row} + position - sequence.start;
    const float* from = static_cast<const float*>(job.qkv.data) + row * job.qkv.cols +
                        int64_t{tile.kv_head} * job.group * hd;
    for (int64_t i = 0; i < job.group * hd; ++i) *q++ = from[i] * job.shape.scale;
  }
}

// Keys and values of a partition as float, as far as the tile's last query sees them.
void AttentionRunner::load_partition(const Job& job, const Tile& tile, uint32_t partition,
                                     Scratch& scratch) const {
  const SequenceView& sequence = job.step.sequences[tile.sequence];
  const kv::KvLayout& layout = job.kv.layout;
  const int64_t hd = job.shape.head_dim;
  scratch.keys.resize(static_cast<size_t>(kPartition * hd));
  scratch.values.resize(static_cast<size_t>(kPartition * job.stride));
  const uint32_t window = job.shape.window;
  const uint32_t seen_from = window == 0 || tile.begin < window ? 0 : tile.begin - window + 1;
  const uint32_t page_begin = std::max(partition * kPartition, seen_from) / kTokens;
  const uint32_t page_end =
      (std::min((partition + 1) * kPartition, tile.end) + kTokens - 1) / kTokens;
  const uint32_t own_page = layout.needs_tail() ? tile.begin / kTokens : UINT32_MAX;
  for (uint32_t page = page_begin; page < page_end; ++page) {
    const int64_t slot = page - partition * (kPartition / kTokens);
    const int64_t valid = std::min(kTokens, tile.end - page * kTokens);
    const std::byte* key = nullptr;
    const std::byte* value = nullptr;
    KvElements elements = kv_elements(layout.format);
    if (page == own_page) {
      const kv::KvLayout tail = layout.tail_layout();
      elements = kv_elements(tail.format);
      scratch.exact.resize(tail.head_bytes());
      key = job.writer.exact_head(job.step, tile.sequence, job.layer, page, tile.kv_head,
                                  QkvColumns(job.shape), job.qkv, job.kv, scratch.exact.data());
      value = key + tail.k_section_bytes();
    } else {
      key = key_section(layout, job.kv.page(job.layer, sequence.blocks[page]).data(), tile.kv_head);
      value = key + layout.k_section_bytes();
    }
    kernels_.kv.load_keys(elements.key, key, hd, valid, scratch.keys.data() + slot * kTokens * hd);
    kernels_.kv.load_values(elements.value, value, hd, valid,
                            scratch.values.data() + slot * kTokens * job.stride);
  }
}

void AttentionRunner::attend(const Job& job, const Tile& tile, uint32_t partition, Scratch& scratch,
                             const State& state) const {
  const int64_t n = rows(job, tile);
  scratch.first.resize(static_cast<size_t>(n));
  scratch.last.resize(static_cast<size_t>(n));
  scratch.kernel.resize(static_cast<size_t>(cpu::attend_scratch(job.stride)));
  const auto base = static_cast<int32_t>(partition * kPartition);
  for (int64_t r = 0; r < n; ++r) {
    const auto position = static_cast<int32_t>(tile.begin) + static_cast<int32_t>(r / job.group);
    const auto window = static_cast<int32_t>(job.shape.window);
    const int32_t first = window == 0 ? 0 : position - window + 1;
    const auto at = static_cast<size_t>(r);
    scratch.first[at] = std::max(first - base, 0);
    scratch.last[at] = std::min(position + 1 - base, static_cast<int32_t>(kPartition));
  }
  cpu::AttendTask task;
  task.q = scratch.q.data();
  task.rows = n;
  task.first = scratch.first.data();
  task.last = scratch.last.data();
  task.keys = scratch.keys.data();
  task.values = scratch.values.data();
  task.head_dim = job.shape.head_dim;
  task.value_stride = job.stride;
  task.scratch = scratch.kernel.data();
  task.max = state.max;
  task.sum = state.sum;
  task.acc = state.acc;
  kernels_.attention.attend(task);
}

void AttentionRunner::write_out(const Job& job, const Tile& tile, const State& state) const {
  const SequenceView& sequence = job.step.sequences[tile.sequence];
  const int64_t hd = job.shape.head_dim;
  int64_t r = 0;
  for (uint32_t position = tile.begin; position < tile.end; ++position) {
    const int64_t row = int64_t{sequence.first_row} + position - sequence.start;
    float* to = static_cast<float*>(job.out.data) + row * job.out.cols +
                int64_t{tile.kv_head} * job.group * hd;
    for (int64_t g = 0; g < job.group; ++g, ++r)
      kernels_.attention.finish(state.acc + r * job.stride, state.sum[r], hd, to + g * hd);
  }
}

}  // namespace tandem::engine
