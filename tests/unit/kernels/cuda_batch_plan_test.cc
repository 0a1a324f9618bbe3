#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/linear_batch_layout.h"
#include "tests/unit/kernels/linear_task.h"

namespace tandem::cuda {
namespace {

// Outputs of the longest range, as linear_batch.cu divides them.
int64_t longest_range(const SmallLinear& task, const BatchPlan& plan) {
  const int64_t unit = kept_together(task);
  const int64_t units = task.out / unit;
  int64_t longest = 0;
  for (int64_t c = 0; c < plan.clusters; ++c)
    longest = std::max(longest, units * (c + 1) / plan.clusters - units * c / plan.clusters);
  return longest * unit;
}

void expect_fits(const SmallLinear& task, uint32_t multiprocessors) {
  const bool fp8 = task.fp8 != nullptr;
  BatchDevice device;
  device.multiprocessors = multiprocessors;
  const BatchPlan plan = plan_batch_linear(task, device);
  SCOPED_TRACE(std::to_string(task.in) + "x" + std::to_string(task.out) + " rows " +
               std::to_string(task.rows) + (fp8 ? " fp8" : ""));
  const int64_t unit = kept_together(task);
  EXPECT_GE(plan.columns, task.rows);
  EXPECT_EQ(plan.columns % 8, 0U);
  EXPECT_GE(plan.clusters, 1U);
  EXPECT_LE(plan.clusters * plan.split, std::max(multiprocessors, plan.split));
  EXPECT_LE(plan.tile_rows, plan.groups * kBatchGroupOutputs);
  EXPECT_EQ(plan.tile_rows % unit, 0);
  EXPECT_GE(int64_t{plan.tiles} * plan.tile_rows, longest_range(task, plan));
  EXPECT_GT(plan.stages, plan.sharers);
  EXPECT_LE(plan.stages, kBatchStages);
  EXPECT_LE(plan.shared_bytes, device.shared_bytes);
  const uint32_t members = plan.split * plan.sharers;
  EXPECT_EQ(plan.buffers, members == 1 ? 0U : plan.tiles == 1 ? 1U : 2U);
  // What wgmma reads of the last stage, past the outputs that a tile has.
  const uint32_t first =
      2 * kBatchHeaderBytes +
      plan.buffers * batch_sums_bytes(plan.columns, members, plan.sharers * plan.groups);
  const uint32_t stage = batch_stage_bytes(plan.tile_rows, plan.columns, fp8);
  EXPECT_GE(plan.shared_bytes, first + plan.stages * stage);
  EXPECT_GE(plan.shared_bytes, first + (plan.stages - 1) * stage +
                                   plan.groups * kBatchGroupOutputs * kBatchPanelBytes);
}

// What the kernel relies on, for every plan.
TEST(BatchPlanTest, PlansFitTheKernel) {
  for (const int64_t in : {8, 32, 256, 576, 3584, 4096, 18944, 29568})
    for (const int64_t out : {2, 6, 34, 130, 576, 4608, 37888, 152064})
      for (const uint32_t rows : {1U, 8U, 9U, 16U, 24U, 33U, kBatchRows})
        for (const SmallEpilogue epilogue : {SmallEpilogue::kStore, SmallEpilogue::kSiluMul})
          for (const uint32_t multiprocessors : {132U, 114U, 1U})
            for (const bool fp8 : {false, true})
              if (!fp8 || in % 16 == 0)
                expect_fits(task_of({in, out, rows, epilogue, false, fp8}), multiprocessors);
}

// How sums are divided decides their bits.
TEST(BatchPlanTest, SumsAreDividedAlikeForAnyNumberOfRows) {
  for (const int64_t in : {64, 576, 3584, 18944})
    for (const int64_t out : {96, 3584, 4608, 37888})
      for (const bool fp8 : {false, true}) {
        const auto plan = [&](uint32_t rows) {
          return plan_batch_linear(task_of({in, out, rows, SmallEpilogue::kStore, false, fp8}), {});
        };
        const BatchPlan first = plan(1);
        for (uint32_t rows = 2; rows <= kBatchRows; ++rows) {
          EXPECT_EQ(plan(rows).split, first.split) << in << " x " << out << ", " << rows;
          EXPECT_EQ(plan(rows).sharers, first.sharers) << in << " x " << out << ", " << rows;
        }
      }
}

TEST(BatchPlanTest, KeepsTheCardBusy) {
  for (const bool fp8 : {false, true}) {
    const BatchPlan plan =
        plan_batch_linear(task_of({3584, 3584, 32, SmallEpilogue::kAdd, false, fp8}), {});
    EXPECT_EQ(plan.clusters * plan.split, 132U);
    EXPECT_GE(plan.stages * plan.tile_rows * kBatchPanelBytes, 64U * 1024);
  }
}

}  // namespace
}  // namespace tandem::cuda
