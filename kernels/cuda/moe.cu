#include "kernels/cuda/moe.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_units.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/rows.h"

// Which rows go to which experts, and the sum of what comes back.
namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Rows whose normed values a router block keeps in shared memory; of long rows fewer fit.
constexpr int kRouterRows = 8;
constexpr int kRouterLongRows = 2;
constexpr int64_t kRouterBytes = 200 * 1024;
constexpr int64_t kRouterHidden = kRouterBytes / kRouterRows / static_cast<int64_t>(sizeof(float));
static_assert(kMaxMoeHidden ==
              kRouterBytes / kRouterLongRows / static_cast<int64_t>(sizeof(float)));
constexpr int kGroupThreads = 1024;
static_assert(kThreads == kNormThreads);

// logits[rows, experts]; block (x: kRows rows, y: experts of its kWarps * kPerWarp). A dot product
// is taken by one warp in an order that depends on `hidden` alone.
template <int kPerWarp, int kRows>
__global__ void __launch_bounds__(kThreads) router_kernel(Moe task) {
  extern __shared__ float4 normed_rows[];
  __shared__ float sums[kRows][kWarps];
  allow_next();
  wait_for_previous();
  const auto t = static_cast<int>(threadIdx.x);
  const int lane = t % 32;
  const int warp = t / 32;
  const int first = static_cast<int>(blockIdx.x) * kRows;
  const int rows = min(kRows, static_cast<int>(task.rows) - first);
  const int64_t n = task.shapes.hidden;
  const auto fours = static_cast<int>(n / 4);
  for (int r = 0; r < rows; ++r) {
    const float share = warp_sum(square_share(task.x + (first + r) * n, n, t));
    if (lane == 0) sums[r][warp] = share;
  }
  __syncthreads();
  for (int r = 0; r < kRows; ++r) {
    const bool real = r < rows;
    const float factor = real ? norm_factor(sums[r], n, task.eps) : 0.0F;
    const float4* x = reinterpret_cast<const float4*>(task.x + (first + r) * n);
    const float4* norm = reinterpret_cast<const float4*>(task.norm);
    for (int i = t; i < fours; i += kThreads) {
      const float4 v = real ? x[i] : float4{};
      const float4 w = norm[i];
      normed_rows[r * fours + i] = {v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z,
                                    v.w * factor * w.w};
    }
  }
  __syncthreads();
  const auto experts = static_cast<int>(task.shapes.experts);
  const int expert = (static_cast<int>(blockIdx.y) * kWarps + warp) * kPerWarp;
  if (expert >= experts) return;
  float dots[kPerWarp][kRows] = {};
  for (int i = lane; i < fours; i += 32) {
    float4 w[kPerWarp];
#pragma unroll
    for (int e = 0; e < kPerWarp; ++e)
      w[e] = reinterpret_cast<const float4*>(task.weights.router +
                                             min(expert + e, experts - 1) * n)[i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 x = normed_rows[r * fours + i];
#pragma unroll
      for (int e = 0; e < kPerWarp; ++e) {
        dots[e][r] = fmaf(x.x, w[e].x, dots[e][r]);
        dots[e][r] = fmaf(x.y, w[e].y, dots[e][r]);
        dots[e][r] = fmaf(x.z, w[e].z, dots[e][r]);
        dots[e][r] = fmaf(x.w, w[e].w, dots[e][r]);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kPerWarp; ++e)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float dot = warp_sum(dots[e][r]);
      if (lane == 0 && r < rows && expert + e < experts)
        task.buffers.logits[int64_t{first + r} * experts + expert + e] = dot;
    }
}

// The larger of two candidates; the lower expert wins a tie.
__device__ __forceinline__ bool better(float a, int a_expert, float b, int b_expert) {
  return a > b || (a == b && a_expert < b_expert);
}

// One warp chooses a row's experts: lane l looks at experts l, l + 32, …
template <int kPerLane>
__device__ __forceinline__ void choose(const Moe& task, int row, int lane) {
  const auto experts = static_cast<int>(task.shapes.experts);
  const auto k = static_cast<int>(task.shapes.experts_per_token);
  const bool real = task.row_sequence == nullptr || task.row_sequence[row] >= 0;
  if (!real) {
    if (lane < k) task.buffers.chosen[row * k + lane] = -1;
    return;
  }
  const float* logits = task.buffers.logits + int64_t{row} * experts;
  constexpr float kNone = -INFINITY;
  float values[kPerLane];
  uint32_t left = 0;
  float top = kNone;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * 32;
    // A NaN is chosen last, so that whatever the input every row has k different experts.
    values[i] = e < experts && !isnan(logits[e]) ? logits[e] : kNone;
    if (e < experts) left |= 1U << i;
    top = fmaxf(top, values[i]);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, offset));
  float total = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (left >> i & 1) total += expf(values[i] - top);
  total = warp_sum(total);

  int mine = 0x7fffffff;  // lane s keeps the s-th best
  float mine_weight = 0;
  for (int s = 0; s < k; ++s) {
    float best = kNone;
    int expert = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if ((left >> i & 1) && better(values[i], lane + i * 32, best, expert)) {
        best = values[i];
        expert = lane + i * 32;
      }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffU, best, offset);
      const int other_expert = __shfl_xor_sync(0xffffffffU, expert, offset);
      if (better(other, other_expert, best, expert)) {
        best = other;
        expert = other_expert;
      }
    }
    if (expert % 32 == lane) left &= ~(1U << (expert / 32));
    if (lane == s) {
      mine = expert;
      mine_weight = expf(best - top);
    }
  }
  int rank = 0;
  for (int s = 0; s < k; ++s) rank += __shfl_sync(0xffffffffU, mine, s) < mine ? 1 : 0;
  if (task.shapes.normalize_top_k) {
    // In the order of expert numbers.
    total = 0;
    for (int place = 0; place < k; ++place) {
      const uint32_t holder = __ballot_sync(0xffffffffU, lane < k && rank == place);
      total += __shfl_sync(0xffffffffU, mine_weight, __ffs(static_cast<int>(holder)) - 1);
    }
  }
  if (lane >= k) return;
  task.buffers.chosen[row * k + rank] = mine;
  task.buffers.weights[row * k + rank] = mine_weight / total;
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) choose_kernel(Moe task) {
  allow_next();
  wait_for_previous();
  const auto row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  if (row < static_cast<int>(task.rows))
    choose<kPerLane>(task, row, static_cast<int>(threadIdx.x % 32));
}

// Exclusive sum over the block's threads.
__device__ __forceinline__ int scan(int value, int* warp_sums, int t) {
  const int lane = t % 32;
  int sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) warp_sums[t / 32] = sum;
  __syncthreads();
  if (t < 32) {
    int w = warp_sums[t];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffU, w, offset);
      if (lane >= offset) w += other;
    }
    warp_sums[t] = w;
  }
  __syncthreads();
  const int before = t >= 32 ? warp_sums[t / 32 - 1] : 0;
  __syncthreads();
  return before + sum - value;
}

// One block numbers the members by expert and cuts them into tiles. The order of one expert's
// members is whatever it is: no result depends on it.
__device__ __forceinline__ void group(const Moe& task, int tile_rows, int t) {
  __shared__ int counts[kMaxExperts];
  __shared__ int warp_sums[kGroupThreads / 32];
  counts[t] = 0;
  __syncthreads();
  const auto k = static_cast<int>(task.shapes.experts_per_token);
  const int members = static_cast<int>(task.rows) * k;
  for (int i = t; i < members; i += kGroupThreads) {
    const int expert = task.buffers.chosen[i];
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  const int count = counts[t];
  const int first = scan(count, warp_sums, t);
  const int tiles = (count + tile_rows - 1) / tile_rows;
  const int first_tile = scan(tiles, warp_sums, t);
  for (int i = 0; i < tiles; ++i)
    task.buffers.tiles[first_tile + i] = {t, first + i * tile_rows,
                                          min(tile_rows, count - i * tile_rows)};
  if (t == kGroupThreads - 1) *task.buffers.tile_count = first_tile + tiles;
  counts[t] = first;
  __syncthreads();
  for (int i = t; i < members; i += kGroupThreads) {
    const int expert = task.buffers.chosen[i];
    int place = -1;
    if (expert >= 0) {
      place = atomicAdd(&counts[expert], 1);
      task.buffers.member_row[place] = i / k;
    }
    task.buffers.places[i] = place;
  }
}

__global__ void __launch_bounds__(kGroupThreads) group_kernel(Moe task, int tile_rows) {
  allow_next();
  wait_for_previous();
  group(task, tile_rows, static_cast<int>(threadIdx.x));
}

// Both at once, where one block's warps choose for all rows about as fast as many blocks would.
__global__ void __launch_bounds__(kGroupThreads) choose_and_group_kernel(Moe task, int tile_rows) {
  allow_next();
  wait_for_previous();
  const auto t = static_cast<int>(threadIdx.x);
  for (int row = t / 32; row < static_cast<int>(task.rows); row += kGroupThreads / 32)
    choose<8>(task, row, t % 32);
  __syncthreads();
  group(task, tile_rows, t);
}
static_assert(kGroupThreads == kMaxExperts);

// x[row] += weights * results, four columns a thread, experts in ascending order.
__global__ void __launch_bounds__(kThreads) combine_kernel(Moe task) {
  allow_next();
  wait_for_previous();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const auto k = static_cast<int>(task.shapes.experts_per_token);
  const int64_t n = task.shapes.hidden;
  const int32_t* places = task.buffers.places + row * k;
  if (places[0] < 0) return;
  const float* weights = task.buffers.weights + row * k;
  const auto* results = reinterpret_cast<const __nv_bfloat16*>(task.buffers.results);
  for (int64_t i = int64_t{blockIdx.y} * kThreads * 4 + threadIdx.x * 4; i < n;
       i += int64_t{gridDim.y} * kThreads * 4) {
    float4* at = reinterpret_cast<float4*>(task.x + row * n + i);
    float4 sum = *at;
    for (int s = 0; s < k; ++s) {
      const uint2 pair = *reinterpret_cast<const uint2*>(results + int64_t{places[s]} * n + i);
      const float2 a = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair.x));
      const float2 b = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair.y));
      const float w = weights[s];
      sum.x = fmaf(w, a.x, sum.x);
      sum.y = fmaf(w, a.y, sum.y);
      sum.z = fmaf(w, b.x, sum.z);
      sum.w = fmaf(w, b.y, sum.w);
    }
    *at = sum;
  }
}

// Few rows: every warp one expert, so that the router's weights are read by the whole card.
constexpr uint32_t kFewRows = 64;
constexpr int kRouterPerWarp = 4;

using Router = void (*)(Moe);
Router pick_router(bool few, bool is_long) {
  if (is_long)
    return few ? router_kernel<1, kRouterLongRows> : router_kernel<kRouterPerWarp, kRouterLongRows>;
  return few ? router_kernel<1, kRouterRows> : router_kernel<kRouterPerWarp, kRouterRows>;
}

}  // namespace

cudaError_t prepare_moe() {
  for (const bool few : {false, true})
    for (const bool is_long : {false, true})
      if (const cudaError_t error = cudaFuncSetAttribute(
              reinterpret_cast<const void*>(pick_router(few, is_long)),
              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kRouterBytes));
          error != cudaSuccess)
        return error;
  if (const cudaError_t error = prepare_moe_linear(); error != cudaSuccess) return error;
  return prepare_small_linear();
}

cudaError_t moe_route(const Moe& task, cudaStream_t stream) {
  const MoeShapes& shapes = task.shapes;
  const bool few = task.rows <= kFewRows;
  const bool is_long = shapes.hidden > kRouterHidden;
  const int rows = is_long ? kRouterLongRows : kRouterRows;
  const auto shared = static_cast<size_t>(rows * shapes.hidden) * sizeof(float);
  const dim3 grid(ceil_div(task.rows, rows),
                  ceil_div(shapes.experts, kWarps * (few ? 1 : kRouterPerWarp)));
  cudaError_t error =
      launch_chained(pick_router(few, is_long), grid, dim3(kThreads), shared, stream, task);
  if (error != cudaSuccess) return error;
  constexpr auto kTile = static_cast<int>(kMoeTileRows);
  if (few && shapes.experts <= 256)
    return launch_chained(choose_and_group_kernel, dim3(1), dim3(kGroupThreads), 0, stream, task,
                          kTile);
  error = launch_chained(shapes.experts <= 256 ? choose_kernel<8> : choose_kernel<32>,
                         dim3(ceil_div(task.rows, kWarps)), dim3(kThreads), 0, stream, task);
  if (error != cudaSuccess) return error;
  return launch_chained(group_kernel, dim3(1), dim3(kGroupThreads), 0, stream, task, kTile);
}

cudaError_t moe_combine(const Moe& task, cudaStream_t stream) {
  const unsigned parts = task.rows <= kFewRows ? ceil_div(task.shapes.hidden, kThreads * 4) : 1;
  return launch_chained(combine_kernel, dim3(task.rows, parts), dim3(kThreads), 0, stream, task);
}

cudaError_t moe(const Moe& task, const SmallDevice& device, cudaStream_t stream) {
  if (task.rows == 0) return cudaSuccess;
  if (!moe_takes(task.shapes)) return cudaErrorInvalidValue;
  const MoeBuffers& b = task.buffers;
  const MoeShapes& s = task.shapes;
  cudaError_t error =
      rms_norm({task.x, nullptr, task.norm, task.eps, task.rows, s.hidden, b.normed}, stream);
  if (error != cudaSuccess) return error;
  error = moe_route(task, stream);
  if (error != cudaSuccess) return error;
  if (task.rows <= kSmallRows) {
    const SmallExperts in{b.tiles, b.tile_count, b.member_row};
    SmallLinear gate_up;
    gate_up.weight = task.weights.gate_up;
    gate_up.in = s.hidden;
    gate_up.out = 2 * s.intermediate;
    gate_up.rows = task.rows;
    gate_up.x = b.normed;
    gate_up.epilogue = SmallEpilogue::kSiluMul;
    gate_up.result = b.inner;
    const uint32_t most = task.rows * s.experts_per_token;
    error = linear_small_experts(gate_up, in, plan_small_experts(gate_up, most, device), stream);
    if (error != cudaSuccess) return error;
    SmallLinear down;
    down.weight = task.weights.down;
    down.in = s.intermediate;
    down.out = s.hidden;
    down.rows = task.rows;
    down.x = b.inner;
    down.epilogue = SmallEpilogue::kStore;
    down.result = b.results;
    error = linear_small_experts(down, {b.tiles, b.tile_count, nullptr},
                                 plan_small_experts(down, most, device), stream);
  } else {
    error = moe_linear({task.weights.gate_up, s.hidden, 2 * s.intermediate, b.normed, b.member_row,
                        b.tiles, b.tile_count, true, b.inner},
                       device, stream);
    if (error != cudaSuccess) return error;
    error = moe_linear({task.weights.down, s.intermediate, s.hidden, b.inner, nullptr, b.tiles,
                        b.tile_count, false, b.results},
                       device, stream);
  }
  if (error != cudaSuccess) return error;
  return moe_combine(task, stream);
}

}  // namespace tandem::cuda
