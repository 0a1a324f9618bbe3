#include <gtest/gtest.h>

#include <string>

#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_small_layout.h"
#include "tests/unit/kernels/linear_task.h"

namespace tandem::cuda {
namespace {

void expect_fits(const SmallLinear& task) {
  const bool fp8 = task.fp8 != nullptr;
  const SmallDevice device;
  const SmallPlan plan = plan_small_linear(task, device);
  SCOPED_TRACE(std::to_string(task.in) + "x" + std::to_string(task.out) + " rows " +
               std::to_string(task.rows));
  const int64_t unit = kept_together(task);
  EXPECT_GE(plan.blocks, 1U);
  EXPECT_LE(plan.blocks, device.multiprocessors);
  EXPECT_LE(int64_t{plan.blocks}, task.out / unit);
  EXPECT_GE(plan.tile_rows, 1U);
  EXPECT_LE(plan.tile_rows, kSmallTileRows);
  EXPECT_EQ(plan.tile_rows % unit, 0);
  EXPECT_EQ(plan.chunk % kSmallChunk, 0U);
  EXPECT_GE(plan.chunk, kSmallChunk);
  EXPECT_GE(plan.stages, 2U);
  EXPECT_LE(plan.stages, 8U);  // barriers there are
  EXPECT_LE(plan.shared_bytes,
            task.rows <= kSmallFewRows ? device.shared_bytes : device.shared_bytes_many);
  EXPECT_FALSE(plan.input == SmallInput::kNormed && task.norm == nullptr);
  const bool streamed = plan.input == SmallInput::kStreamed;
  EXPECT_GE(
      plan.shared_bytes,
      small_fixed_bytes(task.rows) + (streamed ? 0 : small_resident_bytes(task.in, task.rows)) +
          plan.stages *
              small_stage_bytes(plan.tile_rows, streamed ? task.rows : 0, plan.chunk, fp8 ? 1 : 2));
}

// What the kernel relies on, for every plan.
TEST(SmallPlanTest, PlansFitTheKernel) {
  for (const int64_t in : {8, 32, 248, 576, 3584, 4096, 18944, 29568})
    for (const int64_t out : {2, 6, 34, 576, 4608, 37888, 152064})
      for (uint32_t rows = 1; rows <= kSmallRows; ++rows)
        for (const SmallEpilogue epilogue : {SmallEpilogue::kStore, SmallEpilogue::kSiluMul})
          for (const bool normed : {false, true})
            for (const bool fp8 : {false, true})
              if (!fp8 || in % 16 == 0)
                expect_fits(task_of({in, out, rows, epilogue, normed, fp8}));
}

TEST(SmallPlanTest, ABatchOf1NormsItsOwnRowAndKeepsTheCardBusy) {
  const SmallPlan plan =
      plan_small_linear(task_of({3584, 37888, 1, SmallEpilogue::kSiluMul, true}), {});
  EXPECT_EQ(plan.input, SmallInput::kNormed);
  EXPECT_EQ(plan.blocks, 132U);
  // Enough on its way to cover memory latency: about 64 KB a multiprocessor at 4.3 TB/s.
  EXPECT_GE(plan.stages * plan.tile_rows * plan.chunk * 2, 64U * 1024);
}

}  // namespace
}  // namespace tandem::cuda
