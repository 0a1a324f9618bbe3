#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Shared memory of linear_batch.cu, for the kernel and its planner:
//   header | sums from other warpgroups | stages | what the last tile's missing outputs stand for
// Panels are rows of 128 bytes, swizzled: 64 bf16 or 128 float8 of each weight or activation row.
namespace tandem::cuda {

inline constexpr uint32_t kBatchGroupThreads = 128;
inline constexpr uint32_t kBatchGroupOutputs = 64;
inline constexpr uint32_t kBatchPanelBytes = 128;
inline constexpr uint32_t kBatchStages = 16;
// Header: barriers of the stages, then of the sums. Panels begin at multiples of its size.
inline constexpr uint32_t kBatchArrivedAt = 2 * kBatchStages * 8;
inline constexpr uint32_t kBatchHeaderBytes = 1024;
static_assert(kBatchArrivedAt + 2 * 4 * 8 <= kBatchHeaderBytes);

[[nodiscard]] __host__ __device__ constexpr uint32_t batch_weight_bytes(uint32_t tile_rows) {
  return (tile_rows + 7) / 8 * 8 * kBatchPanelBytes;
}
[[nodiscard]] __host__ __device__ constexpr uint32_t batch_stage_bytes(uint32_t tile_rows,
                                                                       uint32_t columns, bool fp8) {
  return batch_weight_bytes(tile_rows) + (fp8 ? 2 : 1) * columns * kBatchPanelBytes;
}
// Sums come in quads: four of a thread, of 8 rows. A warpgroup gets those of its quads from all
// other members.
[[nodiscard]] __host__ __device__ constexpr uint32_t batch_quads(uint32_t columns,
                                                                 uint32_t members) {
  return (columns / 8 + members - 1) / members;
}
[[nodiscard]] __host__ __device__ constexpr uint32_t batch_sums_bytes(uint32_t columns,
                                                                      uint32_t members,
                                                                      uint32_t warpgroups) {
  return (members - 1) * batch_quads(columns, members) * kBatchGroupThreads * 16 * warpgroups;
}

}  // namespace tandem::cuda
