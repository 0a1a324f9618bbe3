#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/rows.cuh"

// Products of gathered rows with the weights of the expert they chose. Blocks walk over (tile of up
// to 64 rows, 128 outputs) in an order that keeps a tile's rows and an expert's weights in the L2
// cache; cp.async fills four stages of 64 inputs (whole lines) each, eight warps of 32 x 32 results
// multiply. Two blocks a multiprocessor, so that one loads while the other ends.
namespace tandem::cuda {
namespace {

constexpr int kTileRows = static_cast<int>(kMoeTileRows);
constexpr int kTileOutputs = 128;
constexpr int kChunk = 64;
constexpr int kStages = 4;
constexpr int kThreads = 256;
constexpr int kPitch = kChunk * 2 + 16;  // bytes; 8 rows of a matrix then lie in different banks
constexpr int kStageBytes = (kTileRows + kTileOutputs) * kPitch;
constexpr int kSharedBytes = kStages * kStageBytes;

struct Task {
  const __nv_bfloat16* weight;
  const __nv_bfloat16* x;
  const int32_t* x_index;
  const ExpertTile* tiles;
  const int32_t* tile_count;
  __nv_bfloat16* result;
  int in;
  int out;
};

// 16 bytes, or zeros when `real` is false.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Which pieces of a chunk a thread copies: 8 pieces of 16 bytes a row, 32 rows a turn.
constexpr int kPieces = kChunk / 8;
constexpr int kTurnRows = kThreads / kPieces;
struct Sources {
  const __nv_bfloat16* x[kTileRows / kTurnRows];
  const __nv_bfloat16* weights[kTileOutputs / kTurnRows];
  uint32_t real;  // bit i: weights[i]; bit 16 + i: x[i]
};

__device__ __forceinline__ void load_chunk(const Sources& s, uint32_t stage, int at, int in,
                                           int t) {
  const int column = at + t % kPieces * 8;
  const bool inside = column < in;
  const uint32_t to = stage + static_cast<uint32_t>(t / kPieces * kPitch + t % kPieces * 16);
  const int offset = inside ? column : 0;
#pragma unroll
  for (int i = 0; i < kTileRows / kTurnRows; ++i)
    copy_async(to + static_cast<uint32_t>(i * kTurnRows * kPitch), s.x[i] + offset,
               inside && (s.real >> (16 + i) & 1));
#pragma unroll
  for (int i = 0; i < kTileOutputs / kTurnRows; ++i)
    copy_async(to + static_cast<uint32_t>((kTileRows + i * kTurnRows) * kPitch),
               s.weights[i] + offset, inside && (s.real >> i & 1));
}

__device__ __forceinline__ void multiply_chunk(float (&sums)[2][4][4], uint32_t stage, int rows,
                                               int warp, int lane) {
  const uint32_t x =
      stage + static_cast<uint32_t>((warp % 2 * 32 + lane % 16) * kPitch + lane / 16 * 16);
  const uint32_t weights =
      stage +
      static_cast<uint32_t>((kTileRows + warp / 2 * 32 + lane % 8 + lane / 16 * 8) * kPitch +
                            lane / 8 % 2 * 16);
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    uint32_t a[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
      load_matrices(a[m], x + static_cast<uint32_t>(m * 16 * kPitch + k * 32));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];  // outputs n*16 ..+7: b[0], b[1]; +8 ..+15: b[2], b[3]
      load_matrices(b, weights + static_cast<uint32_t>(n * 16 * kPitch + k * 32));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if (warp % 2 * 32 + m * 16 >= rows) continue;
        mma_bf16(sums[m][2 * n], a[m], b[0], b[1]);
        mma_bf16(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <bool kSilu>
__device__ __forceinline__ void store(const Task& task, const float (&sums)[2][4][4],
                                      const ExpertTile& tile, int first_output, int warp,
                                      int lane) {
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp % 2 * 32 + m * 16 + h * 8 + lane / 4;
      if (row >= tile.count) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int output = first_output + warp / 2 * 32 + n * 8 + lane % 4 * 2;
        if (output >= task.out) continue;
        const float first = sums[m][n][h * 2];
        const float second = sums[m][n][h * 2 + 1];
        const int64_t r = tile.first + row;
        if constexpr (kSilu)
          task.result[r * (task.out / 2) + output / 2] = __float2bfloat16_rn(silu(first) * second);
        else
          *reinterpret_cast<__nv_bfloat162*>(task.result + r * task.out + output) =
              __floats2bfloat162_rn(first, second);
      }
    }
}

template <bool kSilu>
__global__ void __launch_bounds__(kThreads, 2) moe_linear_kernel(Task task) {
  extern __shared__ __align__(128) char shared[];
  allow_next();
  wait_for_previous();
  const auto t = static_cast<int>(threadIdx.x);
  const int lane = t % 32;
  const int warp = t / 32;
  const uint32_t stages = shared_address(shared);
  const int parts = (task.out + kTileOutputs - 1) / kTileOutputs;
  const int chunks = (task.in + kChunk - 1) / kChunk;
  const int items = *task.tile_count * parts;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const ExpertTile tile = task.tiles[item / parts];
    const int first_output = item % parts * kTileOutputs;
    Sources sources;
    sources.real = 0;
#pragma unroll
    for (int i = 0; i < kTileRows / kTurnRows; ++i) {
      const int r = i * kTurnRows + t / kPieces;
      if (r < tile.count) sources.real |= 1U << (16 + i);
      const int member = tile.first + min(r, tile.count - 1);
      const int64_t row = task.x_index != nullptr ? task.x_index[member] : member;
      sources.x[i] = task.x + row * task.in;
    }
#pragma unroll
    for (int i = 0; i < kTileOutputs / kTurnRows; ++i) {
      const int output = first_output + i * kTurnRows + t / kPieces;
      if (output < task.out) sources.real |= 1U << i;
      sources.weights[i] =
          task.weight + (int64_t{tile.expert} * task.out + min(output, task.out - 1)) * task.in;
    }
    float sums[2][4][4] = {};
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < chunks)
        load_chunk(sources, stages + static_cast<uint32_t>(s * kStageBytes), s * kChunk, task.in,
                   t);
      copies_commit();
    }
    for (int c = 0; c < chunks; ++c) {
      copies_wait<kStages - 2>();
      __syncthreads();
      const int next = c + kStages - 1;
      if (next < chunks)
        load_chunk(sources, stages + static_cast<uint32_t>(next % kStages * kStageBytes),
                   next * kChunk, task.in, t);
      copies_commit();
      multiply_chunk(sums, stages + static_cast<uint32_t>(c % kStages * kStageBytes), tile.count,
                     warp, lane);
    }
    store<kSilu>(task, sums, tile, first_output, warp, lane);
    __syncthreads();  // nobody still reads stages that the next tile fills
  }
}

}  // namespace

cudaError_t prepare_moe_linear() {
  for (const void* kernel : {reinterpret_cast<const void*>(moe_linear_kernel<false>),
                             reinterpret_cast<const void*>(moe_linear_kernel<true>)})
    if (const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
        error != cudaSuccess)
      return error;
  return cudaSuccess;
}

cudaError_t moe_linear(const MoeLinear& task, const SmallDevice& device, cudaStream_t stream) {
  if (task.in % 8 != 0 || task.out % 2 != 0) return cudaErrorInvalidValue;
  const Task raw{reinterpret_cast<const __nv_bfloat16*>(task.weight),
                 reinterpret_cast<const __nv_bfloat16*>(task.x),
                 task.x_index,
                 task.tiles,
                 task.tile_count,
                 reinterpret_cast<__nv_bfloat16*>(task.result),
                 static_cast<int>(task.in),
                 static_cast<int>(task.out)};
  return launch_chained(task.silu ? moe_linear_kernel<true> : moe_linear_kernel<false>,
                        dim3(2 * device.multiprocessors), dim3(kThreads), kSharedBytes, stream,
                        raw);
}

}  // namespace tandem::cuda
