#include "common/engine/cuda/attention.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/cuda/cuda_status.h"
#include "kernels/cuda/kv_gather.h"

namespace tandem::engine {

Status CudaAttention::prepare(const AttentionLimits& limits) {
  limits_ = limits;
  layout_ = AttentionLayout(limits);
  TANDEM_ASSIGN(std::byte * memory, arena_.allocate(layout_.bytes, "workspace"));
  for (size_t i = 0; i < limits.windows.size(); ++i) {
    WindowPlan plan;
    plan.window = limits.windows[i];
    TANDEM_ASSIGN(plan.host, cuda::PinnedBuffer::create(layout_.plan_bytes));
    plan.device = memory + layout_.plans[i];
    windows_.push_back(std::move(plan));
  }
  partials_ = memory + layout_.partials;
  TANDEM_CUDA_TRY(
      cudaMemsetAsync(memory + layout_.counters, 0, layout_.counter_bytes, stream_.get()));
  prefill_counters_ = reinterpret_cast<uint32_t*>(memory + layout_.counters);
  counters_ = prefill_counters_ + AttentionLayout::kPrefillCounters;
  keys_ = memory + layout_.keys;
  values_ = memory + layout_.values;
  if (limits.layout.needs_tail()) {
    exact_keys_ = memory + layout_.exact_keys;
    exact_values_ = memory + layout_.exact_values;
    kept_ = memory + layout_.kept;
  }
  TANDEM_ASSIGN(prefill_host_, cuda::PinnedBuffer::create(layout_.prefill_bytes));
  prefill_device_ = memory + layout_.prefill;
  return {};
}

uint32_t CudaAttention::decode_blocks() const {
  return cuda::decode_blocks(several_ ? step_.rows : decoding_, limits_.blocks);
}

Status CudaAttention::begin(std::span<const cuda::SequenceSlot> slots, uint32_t decoding,
                            bool several, const cuda::DeviceStep& step) {
  step_ = step;
  decoding_ = decoding;
  several_ = several;
  groups_.clear();
  if (decoding > 0) TANDEM_TRY(plan_decode(slots.first(decoding)));
  if (decoding < slots.size()) TANDEM_TRY(plan_prefill(slots.subspan(decoding), decoding));
  return {};
}

Status CudaAttention::plan_decode(std::span<const cuda::SequenceSlot> slots) {
  for (WindowPlan& plan : windows_) {
    cuda::plan_decode(decode_shape(limits_, plan.window), slots, decode_blocks(), scratch_plan_);
    if (scratch_plan_.units.size() > layout_.units)
      return fail(ErrorCode::kInternal, "a decode plan is larger than its limits");
    const size_t unit_bytes = scratch_plan_.units.size() * sizeof(cuda::DecodeUnit);
    std::memcpy(plan.host.data(), scratch_plan_.ranges.data(),
                scratch_plan_.ranges.size() * sizeof(uint32_t));
    std::memcpy(plan.host.data() + layout_.units_at, scratch_plan_.units.data(), unit_bytes);
    TANDEM_TRY(cuda::copy_to_device(plan.device, plan.host.data(), layout_.units_at + unit_bytes,
                                    stream_));
  }
  return {};
}

Status CudaAttention::plan_prefill(std::span<const cuda::SequenceSlot> slots, uint32_t first) {
  auto* sequences = prefill_host_.as<cuda::PrefillSequence>();
  auto* tiles = prefill_host_.as<cuda::PrefillTile>(layout_.tiles_at);
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
      if (end > begin && used + span > layout_.positions) break;
      sequences[end] = {s.first_row, s.rows, s.start, used, exact};
      used += span;
      exact += cuda::prefill_span(s.start % kv::kBlockTokens + s.rows);
      group.max_rows = std::max(group.max_rows, s.rows);
      group.max_context = std::max(group.max_context, s.start + s.rows);
    }
    group.slots = end - begin;
    scratch_tiles_.clear();
    cuda::plan_prefill(prefill_shape(limits_), {sequences + begin, group.slots}, limits_.l2_bytes,
                       scratch_tiles_);
    group.tiles = static_cast<uint32_t>(scratch_tiles_.size());
    std::copy(scratch_tiles_.begin(), scratch_tiles_.end(), tiles + tile);
    tile += scratch_tiles_.size();
    groups_.push_back(group);
    begin = end;
  }
  return cuda::copy_to_device(prefill_device_, prefill_host_.data(),
                              layout_.tiles_at + tile * sizeof(cuda::PrefillTile), stream_);
}

Status CudaAttention::write(const cuda::DeviceKv& kv, const cuda::KvWrite& task) {
  written_ = task;
  written_.kept = kept_;
  written_.first_sequence = several_ ? 0 : decoding_;
  TANDEM_CUDA_TRY(cuda::kv_write(step_, kv, written_, stream_.get()));
  return {};
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
  if (!groups_.empty()) step.sequences = decoding_;
  step.max_rows = several_ ? limits_.few.each : 1;
  cuda::DecodeAttention task;
  task.shape = decode_shape(limits_, shape.window);
  task.layer = layer;
  task.scale = shape.scale;
  task.rope = written_.rope;
  task.q_norm = written_.q_norm;
  task.k_norm = written_.k_norm;
  task.norm_eps = written_.norm_eps;
  task.qkv = static_cast<Bf16*>(qkv.data);
  task.kept = kept_;
  task.out = static_cast<Bf16*>(out.data);
  task.units = reinterpret_cast<const cuda::DecodeUnit*>(plan->device + layout_.units_at);
  task.ranges = reinterpret_cast<const uint32_t*>(plan->device);
  task.blocks = decode_blocks();
  task.partials = partials_;
  task.counters = counters_;
  task.written = several_;
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
  gather.positions = layout_.positions;
  gather.exact_keys = exact_keys_;
  gather.exact_values = exact_values_;
  gather.exact_positions = layout_.exact_positions;
  gather.qkv = static_cast<const Bf16*>(qkv.data);
  gather.kept = kept;
  TANDEM_CUDA_TRY(cuda::kv_gather(step, kv, gather, stream_.get()));

  cuda::PrefillAttention task;
  task.shape = prefill_shape(limits_);
  task.window = shape.window;
  task.scale = shape.scale;
  task.q = qkv.data;
  task.q_stride = static_cast<uint64_t>(qkv.cols);
  task.q_rows = static_cast<uint32_t>(qkv.rows);
  task.keys = keys_;
  task.values = values_;
  task.positions = layout_.positions;
  task.exact_keys = exact_keys_;
  task.exact_values = exact_values_;
  task.exact_positions = layout_.exact_positions;
  task.out = out.data;
  task.out_stride = static_cast<uint64_t>(out.cols);
  task.tiles = reinterpret_cast<const cuda::PrefillTile*>(prefill_device_ + layout_.tiles_at) +
               group.first_tile;
  task.tile_count = group.tiles;
  task.counters = prefill_counters_;
  TANDEM_CUDA_TRY(cuda::attention_prefill(task, stream_.get()));
  return {};
}

}  // namespace tandem::engine
