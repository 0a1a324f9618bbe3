#include <cuda_bf16.h>

#include "common/kv/layout.h"
#include "kernels/cuda/attention_prefill_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/step.h"

namespace tandem::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kLanes = 32;
constexpr uint32_t kDimsPerLane = kMaxHeadDim / kLanes;
constexpr uint32_t kPageTokens = kv::kBlockTokens;

// Online softmax of one query, spread over a warp: lane i owns dimensions i, i + 32, ...
struct QueryState {
  float max = -INFINITY;
  float sum = 0.0F;
  float acc[kDimsPerLane] = {};
};

__device__ float warp_max(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, i));
  return x;
}

__device__ float warp_sum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0U, x, i);
  return x;
}

// Takes in keys first .. last-1, 32 at a time: a lane scores one key, then every lane adds all 32
// values to its dimensions. `keys` and `values` point at position 0.
__device__ void attend(const float* q, float scale_log2, uint32_t head_dim,
                       const __nv_bfloat16* keys, const __nv_bfloat16* values, uint32_t first,
                       uint32_t last, QueryState& state) {
  const uint32_t lane = threadIdx.x % kLanes;
  for (uint32_t base = first; base < last; base += kLanes) {
    const uint32_t key = base + lane;
    float score = -INFINITY;
    if (key < last) {
      float dot = 0.0F;
      const __nv_bfloat16* row = keys + size_t{key} * head_dim;
      for (uint32_t d = 0; d < head_dim; ++d) dot += q[d] * __bfloat162float(row[d]);
      score = dot * scale_log2;
    }
    const float max = fmaxf(state.max, warp_max(score));  // finite: key `base` is visible
    const float keep = exp2f(state.max - max);
    const float weight = exp2f(score - max);
    state.max = max;
    state.sum = state.sum * keep + warp_sum(weight);
    for (float& x : state.acc) x *= keep;
    const uint32_t count = min(kLanes, last - base);
    for (uint32_t i = 0; i < count; ++i) {
      const float p = __shfl_sync(~0U, weight, static_cast<int>(i));
      const __nv_bfloat16* row = values + size_t{base + i} * head_dim;
      for (uint32_t j = 0; j < kDimsPerLane; ++j) {
        const uint32_t d = j * kLanes + lane;
        if (d < head_dim) state.acc[j] += p * __bfloat162float(row[d]);
      }
    }
  }
}

__global__ void __launch_bounds__(kWarps* kLanes) prefill_plain_kernel(PrefillAttention args) {
  __shared__ float queries[kWarps][kMaxHeadDim];
  const uint32_t warp = threadIdx.x / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t head_dim = args.shape.head_dim;
  allow_next();
  wait_for_previous();
  const PrefillTile tile = args.tiles[blockIdx.x];
  const uint32_t kv_head = tile.head / (args.shape.heads / args.shape.kv_heads);
  const auto side = [&](const void* base, uint32_t positions, uint32_t offset) {
    return static_cast<const __nv_bfloat16*>(base) +
           (size_t{kv_head} * positions + offset) * head_dim;
  };
  const __nv_bfloat16* keys = side(args.keys, args.positions, tile.kv_offset);
  const __nv_bfloat16* values = side(args.values, args.positions, tile.kv_offset);
  const float scale_log2 = args.scale * 1.4426950408889634F;

  for (uint32_t r = warp; r < tile.rows; r += kWarps) {
    const size_t row = tile.row + r;
    const uint32_t position = tile.position + r;
    const auto* q = static_cast<const __nv_bfloat16*>(args.q) + row * args.q_stride +
                    size_t{tile.head} * head_dim;
    for (uint32_t d = lane; d < head_dim; d += kLanes) queries[warp][d] = __bfloat162float(q[d]);
    __syncwarp();

    const uint32_t first =
        args.window == 0 || position < args.window ? 0 : position - args.window + 1;
    QueryState state;
    uint32_t stored = position + 1;
    if (args.exact_keys != nullptr) {
      const uint32_t page = position / kPageTokens * kPageTokens;
      const uint32_t origin = tile.position / kPageTokens * kPageTokens;
      attend(queries[warp], scale_log2, head_dim,
             side(args.exact_keys, args.exact_positions, tile.exact_offset),
             side(args.exact_values, args.exact_positions, tile.exact_offset),
             max(first, page) - origin, position + 1 - origin, state);
      stored = page;
    }
    attend(queries[warp], scale_log2, head_dim, keys, values, first, stored, state);

    auto* out = static_cast<__nv_bfloat16*>(args.out) + row * args.out_stride +
                size_t{tile.head} * head_dim;
    for (uint32_t j = 0; j < kDimsPerLane; ++j) {
      const uint32_t d = j * kLanes + lane;
      if (d < head_dim) out[d] = __float2bfloat16(state.acc[j] / state.sum);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t attention_prefill_plain(const PrefillAttention& args, cudaStream_t stream) {
  if (args.shape.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  return launch_chained(prefill_plain_kernel, args.tile_count, kWarps * kLanes, 0, stream, args);
}

}  // namespace tandem::cuda
