#include <algorithm>

#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/linear_batch_layout.h"
#include "kernels/cuda/linear_units.h"

namespace tandem::cuda {
namespace {

// Clusters of one block own so many outputs at least a block; fewer are split in two along the
// inputs, so that a tile fills its instructions (H200, Qwen2-7B shapes: clusters of four are far
// slower, since some of them find no four free multiprocessors side by side).
constexpr int64_t kUnsplitOutputs = 128;
constexpr uint32_t kMostGroups = 3;
// What is worth a cluster, or a block of one.
constexpr int64_t kLeastOutputs = 8;
constexpr uint32_t kLeastSteps = 4;

uint32_t columns_of(uint32_t rows) {
  for (const uint32_t columns : {8U, 16U, 24U, 32U})
    if (rows <= columns) return columns;
  return kBatchRows;
}

}  // namespace

BatchPlan plan_batch_linear(const SmallLinear& task, const BatchDevice& device,
                            const BatchPlan& overrides) {
  const auto pick = [](uint32_t wanted, uint32_t planned) {
    return wanted != 0 ? wanted : planned;
  };
  const bool fp8 = task.fp8 != nullptr;
  const int64_t unit = output_unit(task.epilogue);
  const int64_t units = task.out / unit;
  const uint32_t steps = ceil_div(task.in, fp8 ? 128 : 64);
  BatchPlan plan;
  plan.columns = columns_of(task.rows);
  const bool many = task.out >= kUnsplitOutputs * device.multiprocessors;
  plan.split = pick(overrides.split, many ? 1 : 2);
  while (plan.split > 1 && steps < plan.split * kLeastSteps) plan.split /= 2;
  plan.clusters = std::clamp<uint32_t>(device.multiprocessors / plan.split, 1,
                                       std::max<uint32_t>(ceil_div(task.out, kLeastOutputs), 1));
  // Equal tiles: a cluster's last one should not be a sliver.
  const int64_t most = ceil_div(units, plan.clusters);
  const uint32_t limit = pick(overrides.groups, kMostGroups) * kBatchGroupOutputs;
  plan.tiles = ceil_div(most * unit, limit);
  plan.tile_rows = static_cast<uint32_t>(ceil_div(most, plan.tiles) * unit);
  plan.groups = pick(overrides.groups, ceil_div(plan.tile_rows, kBatchGroupOutputs));
  plan.sharers = pick(overrides.sharers, plan.groups == 1 ? 2 : 1);
  const uint32_t members = plan.split * plan.sharers;
  plan.buffers = members == 1 ? 0 : plan.tiles == 1 ? 1 : 2;
  const uint32_t sums =
      plan.buffers * batch_sums_bytes(plan.columns, members, plan.sharers * plan.groups);
  // The first kBatchHeaderBytes align the rest. Past the last stage, what wgmma reads for outputs
  // that a tile does not have.
  const uint32_t weights = batch_weight_bytes(plan.tile_rows);
  const uint32_t whole = plan.groups * kBatchGroupOutputs * kBatchPanelBytes;
  const uint32_t stage = batch_stage_bytes(plan.tile_rows, plan.columns, fp8);
  const uint32_t behind = whole - std::min(whole, weights);
  const uint32_t fixed = 2 * kBatchHeaderBytes + sums + behind;
  const uint32_t shared = pick(overrides.shared_bytes, device.shared_bytes);
  plan.stages = std::clamp<uint32_t>((shared - std::min(fixed, shared)) / stage, 1,
                                     pick(overrides.stages, kBatchStages));
  plan.shared_bytes = fixed + plan.stages * stage;
  return plan;
}

}  // namespace tandem::cuda
