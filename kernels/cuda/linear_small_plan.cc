#include <algorithm>

#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_small_layout.h"
#include "kernels/cuda/linear_units.h"

namespace tandem::cuda {
namespace {

// Fewest outputs that are worth a block of their own.
constexpr int64_t kMinBlockRows = 4;
constexpr uint32_t kMaxStages = 8;
// Copies of 1 KiB a row (512 inputs in bf16) stream 5 to 10 % faster than shorter ones as long as
// three stages fit; longer ones gain nothing (H200, Qwen2-7B shapes).
constexpr uint32_t kLongCopy = 1024;
constexpr uint32_t kMinStages = 3;

int64_t element_of(const SmallLinear& task) {
  return task.fp8 != nullptr ? 1 : static_cast<int64_t>(sizeof(Bf16));
}

uint32_t shared_of(const SmallLinear& task, const SmallDevice& device) {
  return task.rows <= kSmallFewRows ? device.shared_bytes : device.shared_bytes_many;
}

SmallInput input_of(const SmallLinear& task, const SmallDevice& device, bool several_tiles) {
  const uint32_t bytes = small_resident_bytes(task.in, task.rows);
  // Rows may take up to three fifths of the memory; the rest must hold enough weights.
  const bool fits = bytes <= shared_of(task, device) / 5 * 3;
  if (task.norm != nullptr && fits && bytes <= device.normed_bytes) return SmallInput::kNormed;
  return several_tiles && fits ? SmallInput::kLoaded : SmallInput::kStreamed;
}

// Fills the shared memory with stages.
void plan_stages(const SmallLinear& task, const SmallDevice& device, const SmallPlan& overrides,
                 SmallPlan& plan) {
  const uint32_t shared = shared_of(task, device);
  const bool streamed = plan.input == SmallInput::kStreamed;
  const uint32_t fixed =
      small_fixed_bytes(task.rows) + (streamed ? 0 : small_resident_bytes(task.in, task.rows));
  const uint32_t room = shared - std::min(fixed, shared);
  const int64_t element = element_of(task);
  const auto stage = [&](uint32_t chunk) {
    return small_stage_bytes(plan.tile_rows, streamed ? task.rows : 0, chunk, element);
  };
  plan.chunk = overrides.chunk;
  if (plan.chunk == 0) {
    plan.chunk = kLongCopy / static_cast<uint32_t>(element);
    while (plan.chunk > kSmallChunk && room / stage(plan.chunk) < kMinStages) plan.chunk /= 2;
  }
  plan.chunk = std::min(plan.chunk, ceil_div(task.in, kSmallChunk) * kSmallChunk);
  const uint32_t stage_bytes = stage(plan.chunk);
  const uint32_t most = overrides.stages != 0 ? overrides.stages : kMaxStages;
  plan.stages = std::clamp<uint32_t>(room / stage_bytes, 1, most);
  plan.shared_bytes = fixed + plan.stages * stage_bytes;
}

}  // namespace

SmallPlan plan_small_linear(const SmallLinear& task, const SmallDevice& device,
                            const SmallPlan& overrides) {
  SmallPlan plan;
  const int64_t unit = output_unit(task.epilogue);
  const int64_t units = task.out / unit;
  const uint32_t wanted = overrides.blocks != 0
                              ? overrides.blocks
                              : std::min(ceil_div(task.out, kMinBlockRows), device.multiprocessors);
  plan.blocks = std::clamp<uint32_t>(wanted, 1, static_cast<uint32_t>(std::max<int64_t>(units, 1)));

  // Equal tiles: a block's last one should not be a sliver.
  const int64_t block_units = ceil_div(units, plan.blocks);
  const int64_t limit = overrides.tile_rows != 0 ? overrides.tile_rows : kSmallTileRows;
  const int64_t tiles = ceil_div(block_units * unit, limit);
  plan.tile_rows = static_cast<uint32_t>(ceil_div(block_units, tiles) * unit);
  plan.input = input_of(task, device, tiles > 1);
  plan_stages(task, device, overrides, plan);
  return plan;
}

SmallPlan plan_small_experts(const SmallLinear& task, uint32_t tiles, const SmallDevice& device) {
  SmallPlan plan;
  plan.blocks = std::clamp<uint32_t>(ceil_div(task.out * int64_t{tiles}, kMinBlockRows), 1,
                                     device.multiprocessors);
  plan.tile_rows = static_cast<uint32_t>(std::min<int64_t>(task.out, kSmallTileRows));
  plan.input = SmallInput::kStreamed;
  plan_stages(task, device, {}, plan);
  return plan;
}

}  // namespace tandem::cuda
