#include "common/engine/cuda/attention.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/cuda/cuda_status.h"
#include "kernels/cuda/kv_gather.h"
#include "kernels/cuda/kv_write.h"

namespace tandem::engine {
namespace {

// Room for several short prompts in one gather beside the longest context.
constexpr uint32_t kShortPrompts = 64;

}  // namespace

cuda::DecodeShape CudaAttention::decode_shape(uint32_t window) const {
  const kv::KvLayout& layout = limits_.layout;
  return {limits_.heads, layout.kv_heads, layout.head_dim, window, layout.format};
}

cuda::PrefillShape CudaAttention::prefill_shape() const {
  return {limits_.heads, limits_.layout.kv_heads, limits_.layout.head_dim};
}

Status CudaAttention::prepare(const AttentionLimits& limits) {
  limits_ = limits;
  const kv::KvLayout& layout = limits.layout;
  size_t partial_bytes = 0;
  size_t counters = 0;
  for (const uint32_t window : limits.windows) {
    const cuda::DecodeShape shape = decode_shape(window);
    const cuda::DecodeLimits most =
        cuda::decode_limits(shape, limits.max_sequences, 1, limits.max_context);
    partial_bytes = std::max(partial_bytes, cuda::decode_partial_bytes(shape, 1, most.partials));
    counters = std::max(counters, most.counters);
    ranges_at_ = std::max(ranges_at_, most.units * sizeof(cuda::DecodeUnit));
  }
  const size_t plan_bytes = ranges_at_ + (limits.blocks + 1) * sizeof(uint32_t);
  for (const uint32_t window : limits.windows) {
    WindowPlan plan;
    plan.window = window;
    TANDEM_ASSIGN(plan.host, cuda::PinnedBuffer::create(plan_bytes));
    TANDEM_ASSIGN(plan.device, arena_.allocate(plan_bytes, "workspace"));
    windows_.push_back(std::move(plan));
  }
  TANDEM_ASSIGN(partials_, arena_.allocate(partial_bytes, "workspace"));
  // One more for the two of the prefill kernel.
  const size_t counter_bytes = (counters + 64) * sizeof(uint32_t);
  TANDEM_ASSIGN(std::byte * zeros, arena_.allocate(counter_bytes, "workspace"));
  TANDEM_CUDA_TRY(cudaMemsetAsync(zeros, 0, counter_bytes, stream_.get()));
  prefill_counters_ = reinterpret_cast<uint32_t*>(zeros);
  counters_ = prefill_counters_ + 64;

  positions_ = std::max(cuda::prefill_span(limits.max_context),
                        cuda::prefill_span(limits.max_rows) + kShortPrompts * cuda::kPrefillAlign);
  const size_t row_bytes = size_t{layout.kv_heads} * layout.head_dim * sizeof(Bf16);
  TANDEM_ASSIGN(keys_, arena_.allocate(positions_ * row_bytes, "workspace"));
  TANDEM_ASSIGN(values_, arena_.allocate(positions_ * row_bytes, "workspace"));
  if (layout.needs_tail()) {
    exact_positions_ =
        cuda::prefill_span(limits.max_rows) + (limits.max_sequences + 1) * cuda::kPrefillAlign;
    TANDEM_ASSIGN(exact_keys_, arena_.allocate(exact_positions_ * row_bytes, "workspace"));
    TANDEM_ASSIGN(exact_values_, arena_.allocate(exact_positions_ * row_bytes, "workspace"));
    TANDEM_ASSIGN(kept_,
                  arena_.allocate(cuda::kv_kept_bytes(layout, limits.max_sequences), "workspace"));
  }
  tiles_at_ = limits.max_sequences * sizeof(cuda::PrefillSequence);
  tiles_at_ = (tiles_at_ + 15) / 16 * 16;
  const size_t prefill_bytes =
      tiles_at_ + cuda::prefill_max_tiles(prefill_shape(), limits.max_rows, limits.max_sequences) *
                      sizeof(cuda::PrefillTile);
  TANDEM_ASSIGN(prefill_host_, cuda::PinnedBuffer::create(prefill_bytes));
  TANDEM_ASSIGN(prefill_device_, arena_.allocate(prefill_bytes, "workspace"));
  return {};
}

Status CudaAttention::begin(std::span<const cuda::SequenceSlot> slots, uint32_t decoding,
                            const cuda::DeviceStep& step) {
  step_ = step;
  decoding_ = decoding;
  groups_.clear();
  if (decoding > 0) TANDEM_TRY(plan_decode(slots.first(decoding)));
  if (decoding < slots.size()) TANDEM_TRY(plan_prefill(slots.subspan(decoding), decoding));
  return {};
}

Status CudaAttention::plan_decode(std::span<const cuda::SequenceSlot> slots) {
  for (WindowPlan& plan : windows_) {
    cuda::plan_decode(decode_shape(plan.window), slots, 1, limits_.blocks, scratch_plan_);
    const size_t unit_bytes = scratch_plan_.units.size() * sizeof(cuda::DecodeUnit);
    if (unit_bytes > ranges_at_)
      return fail(ErrorCode::kInternal, "a decode plan is larger than its limits");
    std::memcpy(plan.host.data(), scratch_plan_.units.data(), unit_bytes);
    TANDEM_TRY(cuda::copy_to_device(plan.device, plan.host.data(), unit_bytes, stream_));
    const size_t range_bytes = scratch_plan_.ranges.size() * sizeof(uint32_t);
    std::memcpy(plan.host.data() + ranges_at_, scratch_plan_.ranges.data(), range_bytes);
    TANDEM_TRY(cuda::copy_to_device(plan.device + ranges_at_, plan.host.data() + ranges_at_,
                                    range_bytes, stream_));
  }
  return {};
}

Status CudaAttention::plan_prefill(std::span<const cuda::SequenceSlot> slots, uint32_t first) {
  auto* sequences = prefill_host_.as<cuda::PrefillSequence>();
  auto* tiles = prefill_host_.as<cuda::PrefillTile>(tiles_at_);
  size_t tile = 0;
  for (uint32_t begin = 0; begin < slots.size();) {
    Group group;
    group.first_slot = first + begin;
    group.first_tile = static_cast<uint32_t>(tile);
    uint32_t used = 0;
    uint32_t exact = 0;
    uint32_t end = begin;
    for (; end < slots.size(); ++end) {
      const cuda::SequenceSlot& s = slots[end];
      const uint32_t span = cuda::prefill_span(s.start + s.rows);
      if (end > begin && used + span > positions_) break;
      sequences[end] = {s.first_row, s.rows, s.start, used, exact};
      used += span;
      exact += cuda::prefill_span(s.start % kv::kBlockTokens + s.rows);
      group.max_rows = std::max(group.max_rows, s.rows);
      group.max_context = std::max(group.max_context, s.start + s.rows);
    }
    group.slots = end - begin;
    scratch_tiles_.clear();
    cuda::plan_prefill(prefill_shape(), {sequences + begin, group.slots}, limits_.l2_bytes,
                       scratch_tiles_);
    group.tiles = static_cast<uint32_t>(scratch_tiles_.size());
    std::copy(scratch_tiles_.begin(), scratch_tiles_.end(), tiles + tile);
    tile += scratch_tiles_.size();
    groups_.push_back(group);
    begin = end;
  }
  return cuda::copy_to_device(prefill_device_, prefill_host_.data(),
                              tiles_at_ + tile * sizeof(cuda::PrefillTile), stream_);
}

Status CudaAttention::run(uint32_t layer, const AttentionShape& shape, const cuda::DeviceKv& kv,
                          Activation qkv, Activation out) {
  if (decoding_ > 0) TANDEM_TRY(run_decode(layer, shape, kv, qkv, out));
  for (const Group& group : groups_) TANDEM_TRY(run_group(group, layer, shape, kv, qkv, out));
  return {};
}

Status CudaAttention::run_decode(uint32_t layer, const AttentionShape& shape,
                                 const cuda::DeviceKv& kv, Activation qkv, Activation out) {
  const auto plan = std::ranges::find(windows_, shape.window, &WindowPlan::window);
  if (plan == windows_.end())
    return fail(ErrorCode::kInternal, "a layer has a window that was not planned for");
  cuda::DeviceStep step = step_;
  step.sequences = decoding_;
  step.max_rows = 1;
  cuda::DecodeAttention task;
  task.shape = decode_shape(shape.window);
  task.layer = layer;
  task.scale = shape.scale;
  task.qkv = static_cast<const Bf16*>(qkv.data);
  task.kept = kept_;
  task.out = static_cast<Bf16*>(out.data);
  task.units = reinterpret_cast<const cuda::DecodeUnit*>(plan->device);
  task.ranges = reinterpret_cast<const uint32_t*>(plan->device + ranges_at_);
  task.blocks = limits_.blocks;
  task.partials = partials_;
  task.counters = counters_;
  TANDEM_CUDA_TRY(cuda::attention_decode(step, kv, task, stream_.get()));
  return {};
}

Status CudaAttention::run_group(const Group& group, uint32_t layer, const AttentionShape& shape,
                                const cuda::DeviceKv& kv, Activation qkv, Activation out) {
  cuda::DeviceStep step = step_;
  step.slots += group.first_slot;
  step.sequences = group.slots;
  step.max_rows = group.max_rows;
  step.max_context = group.max_context;
  // Kept rows go by slot of the whole step.
  std::byte* kept =
      kept_ == nullptr ? nullptr : kept_ + cuda::kv_kept_bytes(kv.layout, group.first_slot);
  cuda::KvGather gather;
  gather.layer = layer;
  gather.heads = shape.heads;
  gather.sequences = reinterpret_cast<const cuda::PrefillSequence*>(prefill_device_) +
                     (group.first_slot - decoding_);
  gather.keys = keys_;
  gather.values = values_;
  gather.positions = positions_;
  gather.exact_keys = exact_keys_;
  gather.exact_values = exact_values_;
  gather.exact_positions = exact_positions_;
  gather.qkv = static_cast<const Bf16*>(qkv.data);
  gather.kept = kept;
  TANDEM_CUDA_TRY(cuda::kv_gather(step, kv, gather, stream_.get()));

  cuda::PrefillAttention task;
  task.shape = prefill_shape();
  task.window = shape.window;
  task.scale = shape.scale;
  task.q = qkv.data;
  task.q_stride = static_cast<uint64_t>(qkv.cols);
  task.q_rows = static_cast<uint32_t>(qkv.rows);
  task.keys = keys_;
  task.values = values_;
  task.positions = positions_;
  task.exact_keys = exact_keys_;
  task.exact_values = exact_values_;
  task.exact_positions = exact_positions_;
  task.out = out.data;
  task.out_stride = static_cast<uint64_t>(out.cols);
  task.tiles =
      reinterpret_cast<const cuda::PrefillTile*>(prefill_device_ + tiles_at_) + group.first_tile;
  task.tile_count = group.tiles;
  task.counters = prefill_counters_;
  TANDEM_CUDA_TRY(cuda::attention_prefill(task, stream_.get()));
  return {};
}

}  // namespace tandem::engine
