#pragma once

#include <cstdint>

#include "kernels/cuda/linear_small.h"

// A product as planners see it: sizes, and whether there are norm or float8 weights, not where.
namespace tandem::cuda {

struct TaskShape {
  int64_t in = 0;
  int64_t out = 0;
  uint32_t rows = 0;
  SmallEpilogue epilogue = SmallEpilogue::kStore;
  bool normed = false;
  bool fp8 = false;
};

inline SmallLinear task_of(const TaskShape& shape) {
  static const float norm = 1.0F;
  static const uint8_t weight = 0;
  SmallLinear task;
  task.in = shape.in;
  task.out = shape.out;
  task.rows = shape.rows;
  task.epilogue = shape.epilogue;
  task.norm = shape.normed ? &norm : nullptr;
  task.fp8 = shape.fp8 ? &weight : nullptr;
  return task;
}

// Outputs that planners must keep together: a gate and its up-projection lie side by side. Said
// here once more, on its own: planner and kernel share output_unit(), so a wrong one would fool
// tests that asked it too.
inline int64_t kept_together(const SmallLinear& task) {
  return task.epilogue == SmallEpilogue::kSiluMul ? 2 : 1;
}

}  // namespace tandem::cuda
