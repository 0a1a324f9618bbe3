#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/linear_small.h"

// The products of linear_small.h for decode steps of up to 48 rows. A row's result is the same bits
// whatever the number of rows and whatever the others hold.
namespace tandem::cuda {

inline constexpr uint32_t kBatchRows = 48;

// How a launch divides its work. `split` and `sharers` say in how many parts an output is summed
// up, so they must not depend on the number of rows.
struct BatchPlan {
  uint32_t columns = 0;  // rows of activations as the instruction takes them
  uint32_t split = 0;    // blocks of a cluster, each with a part of the inputs of its outputs
  uint32_t sharers = 0;  // warpgroups of a block that take a tile's stages in turns
  uint32_t groups = 0;   // times as many, each with 64 outputs of a tile
  uint32_t clusters = 0;
  uint32_t tiles = 0;      // of a cluster
  uint32_t tile_rows = 0;  // outputs of a tile
  uint32_t stages = 0;
  uint32_t buffers = 0;  // for the sums that members of a cluster send each other
  uint32_t shared_bytes = 0;
};

struct BatchDevice {
  uint32_t multiprocessors = 132;
  uint32_t shared_bytes = 222 * 1024;  // of a block
};

// Pure; needs in % 8 == 0 (FP8: 16). `overrides` is for benches: fields that are not 0 are taken as
// they are.
[[nodiscard]] BatchPlan plan_batch_linear(const SmallLinear& task, const BatchDevice& device,
                                          const BatchPlan& overrides = {});

// Once per device before the first launch or capture.
cudaError_t prepare_batch_linear();
// task.rows: 1 .. kBatchRows. Where task.norm is set, scratch is wanted.
cudaError_t linear_batch(const SmallLinear& task, const BatchPlan& plan, cudaStream_t stream);

}  // namespace tandem::cuda
