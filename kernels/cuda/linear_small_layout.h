#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Shared memory of linear_small.cu, for the kernel and its planner:
//   header | sums of the 8 warps | normed rows (resident) | stages
// Rows are padded by 16 bytes, which spreads a matrix's 8 rows over all banks.
namespace tandem::cuda {

inline constexpr uint32_t kSmallTileRows = 32;
inline constexpr uint32_t kSmallWarps = 8;
// Header: 17 barriers, the sums of squares of 16 rows (8 warps each), their factors.
inline constexpr uint32_t kSmallSquaresAt = 256;
inline constexpr uint32_t kSmallFactorsAt = kSmallSquaresAt + 16 * 8 * 4;
inline constexpr uint32_t kSmallHeaderBytes = 1024;
static_assert(kSmallFactorsAt + 16 * 4 <= kSmallHeaderBytes);
// What one block may ask for on Hopper.
inline constexpr int kSmallSharedLimit = 227 * 1024;

[[nodiscard]] __host__ __device__ constexpr uint32_t small_columns(uint32_t rows) {
  return rows > 8 ? 16 : 8;
}
[[nodiscard]] __host__ __device__ constexpr uint32_t small_sums_bytes(uint32_t rows) {
  return kSmallWarps * kSmallTileRows * small_columns(rows) * 4;
}
[[nodiscard]] __host__ __device__ constexpr uint32_t small_fixed_bytes(uint32_t rows) {
  return kSmallHeaderBytes + small_sums_bytes(rows);
}
// Bytes from one row to the next, of `columns` bf16.
[[nodiscard]] __host__ __device__ constexpr uint32_t small_pitch(int64_t columns) {
  return static_cast<uint32_t>((columns + 63) / 64 * 64 * 2 + 16);
}
// The same for weights of `element` bytes.
[[nodiscard]] __host__ __device__ constexpr uint32_t small_weight_pitch(int64_t columns,
                                                                        int64_t element) {
  return static_cast<uint32_t>((columns * element + 127) / 128 * 128 + 16);
}
[[nodiscard]] __host__ __device__ constexpr uint32_t small_resident_bytes(int64_t in,
                                                                          uint32_t rows) {
  return rows * small_pitch(in);
}
// Weights, then rows of activations that come with them.
[[nodiscard]] __host__ __device__ constexpr uint32_t small_stage_bytes(uint32_t tile_rows,
                                                                       uint32_t x_rows,
                                                                       uint32_t chunk,
                                                                       int64_t element) {
  return tile_rows * small_weight_pitch(chunk, element) + x_rows * small_pitch(chunk);
}

}  // namespace tandem::cuda
