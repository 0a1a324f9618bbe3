#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/linear_small.h"

// A mixture of experts as common/engine/cpu/moe.h defines it: the router works in float32 on the
// normed rows, softmax over all experts, the best experts_per_token (the lower number wins a tie),
// optionally normed to sum 1; results are added up in the order of expert numbers. Nothing is read
// back to the host, so all of it can be recorded. See step.h for the folder's conventions.
namespace tandem::cuda {

inline constexpr uint32_t kMaxExperts = 1024;
inline constexpr uint32_t kMaxExpertsPerToken = 32;
inline constexpr int64_t kMaxMoeHidden = 25600;
inline constexpr int64_t kMaxExpertSize = 1 << 20;
inline constexpr int64_t kMoeSizes = 8;  // hidden and expert sizes are multiples of this

struct MoeShapes {
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of one expert
  uint32_t experts = 0;
  uint32_t experts_per_token = 0;
  bool normalize_top_k = false;
};

// Whether these kernels take the shape.
[[nodiscard]] bool moe_takes(const MoeShapes& shapes);

struct MoeWeights {
  const float* router = nullptr;  // [experts, hidden]
  const Bf16* gate_up = nullptr;  // [experts, 2 * intermediate, hidden], gate and up row by row
  const Bf16* down = nullptr;     // [experts, hidden, intermediate]
};

// A member is one row's use of one expert; there are rows * experts_per_token of them, numbered by
// expert. Rows of padding have none.
struct MoeBuffers {
  Bf16* normed = nullptr;         // [rows, hidden]
  float* logits = nullptr;        // [rows, experts]
  int32_t* chosen = nullptr;      // [rows, experts_per_token], ascending; -1: padding
  float* weights = nullptr;       // the same
  int32_t* places = nullptr;      // the same: the member's number
  int32_t* member_row = nullptr;  // [members]
  ExpertTile* tiles = nullptr;    // [moe_max_tiles()]
  int32_t* tile_count = nullptr;
  Bf16* inner = nullptr;    // [members, intermediate]
  Bf16* results = nullptr;  // [members, hidden]
};

// Rows of one expert that a wide tile takes.
inline constexpr uint32_t kMoeTileRows = 64;
[[nodiscard]] size_t moe_max_tiles(const MoeShapes& shapes, uint32_t rows);
// Device memory of all buffers for steps of up to max_rows, and where they lie in it (256-byte
// aligned).
[[nodiscard]] size_t moe_buffer_bytes(const MoeShapes& shapes, uint32_t max_rows);
[[nodiscard]] MoeBuffers moe_buffers(const MoeShapes& shapes, uint32_t max_rows, std::byte* memory);

// x[rows, hidden] += mixture(rms_norm(x) * norm)
struct Moe {
  MoeShapes shapes;
  MoeWeights weights;
  MoeBuffers buffers;
  uint32_t rows = 0;
  const int32_t* row_sequence = nullptr;  // < 0: padding; null: no padding
  float* x = nullptr;
  const float* norm = nullptr;  // [hidden]
  float eps = 0;
};

// Once per device before the first launch or capture.
cudaError_t prepare_moe();
// All of it: router, choice, the experts' projections, sum.
cudaError_t moe(const Moe& task, const SmallDevice& device, cudaStream_t stream);

// The steps, as moe() takes them.
cudaError_t moe_route(const Moe& task, cudaStream_t stream);
cudaError_t moe_combine(const Moe& task, cudaStream_t stream);
// One of the experts' projections for any number of rows: result[i] = x[x_index[i]] @ weight^T of
// the tile's expert, with SiLU where the weights are gate and up.
struct MoeLinear {
  const Bf16* weight = nullptr;  // [experts, out, in]
  int64_t in = 0;
  int64_t out = 0;
  const Bf16* x = nullptr;
  const int32_t* x_index = nullptr;   // null: row i itself
  const ExpertTile* tiles = nullptr;  // of up to kMoeTileRows rows
  const int32_t* tile_count = nullptr;
  bool silu = false;
  Bf16* result = nullptr;  // [members, out], with SiLU [members, out / 2]
};
cudaError_t prepare_moe_linear();  // prepare_moe() calls it
cudaError_t moe_linear(const MoeLinear& task, const SmallDevice& device, cudaStream_t stream);

}  // namespace tandem::cuda
