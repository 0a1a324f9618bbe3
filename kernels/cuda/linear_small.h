#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

// y = x @ weight^T (+ bias) for 1 to 16 rows, at the speed at which the weights can be read. A
// row's result is the same bits whatever the number of rows and whatever the others hold. See
// step.h for the folder's conventions.
namespace tandem::cuda {

inline constexpr uint32_t kSmallRows = 16;

enum class SmallEpilogue : uint8_t {
  kStore,       // bf16 out[rows, out] = y
  kAdd,         // float out[rows, out] += y
  kSiluMul,     // bf16 out[rows, out / 2] = silu(y[2i]) * y[2i + 1]
  kStoreFloat,  // float out[rows, out] = y
};

// Where the input comes from: bf16 rows `x`, or (norm set) the RMS norm of float rows `residual`.
struct SmallLinear {
  const Bf16* weight = nullptr;  // [out, in]
  // Instead: float8 e4m3, value = element * scales[output]; in % 16 == 0, 16-byte aligned. Rows
  // stay bf16. Not for kStoreFloat.
  const uint8_t* fp8 = nullptr;
  const float* scales = nullptr;
  const Bf16* bias = nullptr;  // [out], or null
  int64_t in = 0;
  int64_t out = 0;
  uint32_t rows = 0;  // 1..kSmallRows

  const Bf16* x = nullptr;          // [rows, in]
  const float* residual = nullptr;  // [*, in]
  const uint32_t* index = nullptr;  // rows of `residual`; null: 0, 1, …
  const float* norm = nullptr;      // [in]
  float eps = 0;
  // [rows, in] and [kSmallRows]: take the normed rows when they are too long for every block to
  // norm them itself.
  Bf16* scratch = nullptr;
  float* scratch_factors = nullptr;

  SmallEpilogue epilogue = SmallEpilogue::kStore;
  void* result = nullptr;
};

// How the kernel comes by its rows.
enum class SmallInput : uint8_t {
  kNormed,    // normed by every block into its shared memory
  kLoaded,    // bf16 rows, copied there once
  kStreamed,  // bf16 rows, a chunk at a time with the weights
};

// How a launch divides its work. None of it changes results.
struct SmallPlan {
  uint32_t blocks = 0;     // each takes out / blocks outputs, rounded down or up
  uint32_t tile_rows = 0;  // weight rows a block holds at a time
  uint32_t chunk = 0;      // inputs a stage holds of each of them, a multiple of kSmallChunk
  uint32_t stages = 0;
  SmallInput input = SmallInput::kStreamed;
  uint32_t shared_bytes = 0;
};

inline constexpr uint32_t kSmallFewRows = 4;

// 8 warps take a chunk's inputs in turns of 32.
inline constexpr uint32_t kSmallChunk = 256;

struct SmallDevice {
  uint32_t multiprocessors = 132;
  // Of a block: half of what a multiprocessor has, so that the next kernel's blocks fit beside this
  // one's and read their first weights while this one ends.
  uint32_t shared_bytes = 112 * 1024;
  // Of a block with more than kSmallFewRows rows, whose rows take more room than that leaves for
  // enough weights on their way.
  uint32_t shared_bytes_many = 222 * 1024;
  // Rows that blocks norm for themselves.
  uint32_t normed_bytes = 120 * 1024;
};

// Pure; needs in % 8 == 0. `overrides` is for benches: fields that are not 0 are taken as they are.
[[nodiscard]] SmallPlan plan_small_linear(const SmallLinear& task, const SmallDevice& device,
                                          const SmallPlan& overrides = {});

// Once per device before the first launch or capture: lifts the kernels' shared-memory limits.
cudaError_t prepare_small_linear();
cudaError_t linear_small(const SmallLinear& task, const SmallPlan& plan, cudaStream_t stream);

// The products of a mixture of experts: `weight` is [experts][out][in], `tiles` says which experts
// have which rows, at most 16 each, and is read on the device. Row i of the result is made from x
// row x_index[i] (null: i). Epilogues kStore and kSiluMul; bf16 input, in % 8 == 0, no bias.
struct ExpertTile {
  int32_t expert = 0;
  int32_t first = 0;  // of its rows
  int32_t count = 0;
};
struct SmallExperts {
  const ExpertTile* tiles = nullptr;
  const int32_t* tile_count = nullptr;  // device
  const int32_t* x_index = nullptr;
};
// task.rows: most rows of an expert; `tiles`: most tiles there may be.
[[nodiscard]] SmallPlan plan_small_experts(const SmallLinear& task, uint32_t tiles,
                                           const SmallDevice& device);
cudaError_t linear_small_experts(const SmallLinear& task, const SmallExperts& experts,
                                 const SmallPlan& plan, cudaStream_t stream);

// The same as linear_small() for bf16 rows `x`, any number of them and any size, slowly: for models
// whose rows are not whole 16-byte units, which neither linear_small()'s kernels nor cuBLASLt take.
cudaError_t linear_plain(const SmallLinear& task, cudaStream_t stream);

}  // namespace tandem::cuda
