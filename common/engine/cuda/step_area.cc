#include "common/engine/cuda/step_area.h"

#include <algorithm>
#include <string>

namespace tandem::engine {
namespace {

constexpr size_t kAlign = 16;

size_t take(size_t& at, size_t bytes) {
  const size_t begin = at;
  at = (at + bytes + kAlign - 1) / kAlign * kAlign;
  return begin;
}

}  // namespace

StepLayout::StepLayout(const StepCounts& counts) {
  size_t at = 0;
  tokens = take(at, counts.rows * sizeof(int32_t));
  positions = take(at, counts.rows * sizeof(int32_t));
  row_sequence = take(at, counts.rows * sizeof(int32_t));
  slots = take(at, counts.sequences * sizeof(cuda::SequenceSlot));
  outputs = take(at, counts.outputs * sizeof(uint32_t));
  blocks = take(at, counts.blocks * sizeof(uint32_t));
  bytes = at;
}

SlotOrder::SlotOrder(const StepView& view, const FewRows& few) {
  uint32_t rows = 0;
  uint32_t most = 1;
  for (const SequenceView& s : view.sequences) {
    if (s.rows > few.each) continue;
    rows += s.rows;
    most = std::max(most, s.rows);
  }
  if (rows > few.together) most = 1;
  several = most > 1;
  sequence.resize(view.sequences.size());
  for (uint32_t i = 0; i < sequence.size(); ++i) sequence[i] = i;
  const auto later = std::ranges::stable_partition(
      sequence, [&](uint32_t i) { return view.sequences[i].rows <= most; });
  decoding = static_cast<uint32_t>(later.begin() - sequence.begin());
}

Result<StepArea> StepArea::create(DeviceArena& arena, size_t bytes) {
  StepArea area;
  TANDEM_ASSIGN(area.host_, cuda::PinnedBuffer::create(bytes));
  TANDEM_ASSIGN(area.device_, arena.allocate(bytes, "workspace"));
  area.capacity_ = bytes;
  return area;
}

Status StepArea::fill(const StepView& view, const SlotOrder& order,
                      std::span<const RowOutput> outputs, const StepCounts& counts) {
  counts_ = counts;
  layout_ = StepLayout(counts);
  if (layout_.bytes > capacity_)
    return fail(ErrorCode::kResourceExhausted,
                "a step of " + std::to_string(counts.rows) + " rows and " +
                    std::to_string(counts.sequences) + " sequences over " +
                    std::to_string(counts.blocks) +
                    " KV blocks is larger than the engine was made for: raise max_sequences or "
                    "max_context");
  auto* tokens = host<int32_t>(layout_.tokens);
  auto* positions = host<int32_t>(layout_.positions);
  auto* row_sequence = host<int32_t>(layout_.row_sequence);
  auto* slots = host<cuda::SequenceSlot>(layout_.slots);
  auto* blocks = host<uint32_t>(layout_.blocks);
  std::ranges::copy(view.tokens, tokens);
  std::ranges::copy(view.positions, positions);
  std::fill(tokens + view.rows(), tokens + counts.rows, 0);
  std::fill(positions + view.rows(), positions + counts.rows, 0);
  std::fill(row_sequence, row_sequence + counts.rows, -1);
  std::fill(slots, slots + counts.sequences, cuda::SequenceSlot{});
  max_rows_ = 1;
  max_context_ = 1;
  uint32_t block = 0;
  for (uint32_t slot = 0; slot < order.sequence.size(); ++slot) {
    const SequenceView& s = view.sequences[order.sequence[slot]];
    slots[slot] = {s.first_row, s.rows, s.start, block, s.tail};
    for (const BlockId id : s.blocks) blocks[block++] = id.value;
    std::fill_n(row_sequence + s.first_row, s.rows, static_cast<int32_t>(slot));
    max_rows_ = std::max(max_rows_, s.rows);
    max_context_ = std::max(max_context_, s.start + s.rows);
  }
  auto* rows = host<uint32_t>(layout_.outputs);
  for (size_t i = 0; i < counts.outputs; ++i) rows[i] = i < outputs.size() ? outputs[i].row : 0;
  used_ = layout_.blocks + block * sizeof(uint32_t);
  return {};
}

Status StepArea::upload(const cuda::Stream& stream) const {
  return cuda::copy_to_device(device_, host_.data(), used_, stream);
}

cuda::DeviceStep StepArea::step() const {
  cuda::DeviceStep step;
  step.tokens = device<int32_t>(layout_.tokens);
  step.positions = device<int32_t>(layout_.positions);
  step.row_sequence = device<int32_t>(layout_.row_sequence);
  step.slots = device<cuda::SequenceSlot>(layout_.slots);
  step.blocks = device<uint32_t>(layout_.blocks);
  step.rows = counts_.rows;
  step.sequences = counts_.sequences;
  step.max_rows = max_rows_;
  step.max_context = max_context_;
  return step;
}

}  // namespace tandem::engine
