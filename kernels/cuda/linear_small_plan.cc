#include <algorithm>

#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_small_layout.h"

namespace tandem::cuda {
namespace {

uint32_t ceil_div(int64_t a, int64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }

// Fewest outputs that are worth a block of their own.
constexpr int64_t kMinBlockRows = 4;
// Normed rows that a block prepares for itself: beyond, all blocks together would read more of
// them than of the weights.
constexpr uint32_t kResidentBytes = 36 * 1024;
constexpr uint32_t kMaxStages = 8;
constexpr uint32_t kMinStages = 4;

}  // namespace

SmallPlan plan_small_linear(const SmallLinear& task, const SmallDevice& device,
                            const SmallPlan& overrides) {
  SmallPlan plan;
  const int64_t unit = task.epilogue == SmallEpilogue::kSiluMul ? 2 : 1;
  const int64_t units = task.out / unit;
  plan.blocks = overrides.blocks != 0 ? overrides.blocks
                                      : std::clamp<uint32_t>(ceil_div(task.out, kMinBlockRows), 1,
                                                             device.multiprocessors);
  plan.blocks =
      std::max<uint32_t>(1, std::min<uint32_t>(plan.blocks, static_cast<uint32_t>(units)));
  plan.resident =
      task.norm != nullptr && small_resident_bytes(task.in, task.rows) <= kResidentBytes;

  // Equal tiles: a block's last one should not be a sliver.
  const int64_t block_rows = int64_t{ceil_div(units, plan.blocks)} * unit;
  const int64_t limit = overrides.tile_rows != 0 ? overrides.tile_rows : kSmallTileRows;
  const int64_t tiles = ceil_div(block_rows, limit);
  plan.tile_rows = static_cast<uint32_t>(ceil_div(block_rows / unit, tiles) * unit);

  const uint32_t fixed =
      small_fixed_bytes(task.rows) + (plan.resident ? small_resident_bytes(task.in, task.rows) : 0);
  const uint32_t room = device.shared_bytes - std::min(fixed, device.shared_bytes);
  const uint32_t stage_rows = plan.tile_rows + (plan.resident ? 0 : task.rows);
  const uint32_t longest = ceil_div(task.in, kSmallChunk) * kSmallChunk;
  plan.chunk = overrides.chunk;
  if (plan.chunk == 0) {
    plan.chunk = kSmallChunk;
    while (plan.chunk < std::min<uint32_t>(longest, 1024) &&
           room / small_stage_bytes(stage_rows, plan.chunk + kSmallChunk) >= kMinStages)
      plan.chunk += kSmallChunk;
  }
  plan.chunk = std::min(plan.chunk, longest);
  const uint32_t most = overrides.stages != 0 ? overrides.stages : kMaxStages;
  plan.stages = std::clamp<uint32_t>(room / small_stage_bytes(stage_rows, plan.chunk), 1, most);
  plan.shared_bytes = fixed + plan.stages * small_stage_bytes(stage_rows, plan.chunk);
  return plan;
}

}  // namespace tandem::cuda
