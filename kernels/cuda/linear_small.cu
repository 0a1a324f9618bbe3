#include "kernels/cuda/linear_small.h"

#include <cuda_bf16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_small_layout.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/rows.h"

// A block owns a contiguous range of outputs, i.e. of weight rows, and goes through it tile by
// tile. One warp streams the tile's rows, a chunk of inputs at a time, into a ring of stages; it
// begins before the previous kernel has ended, since weights never change. Eight warps multiply:
// the weights are the 16-row operand of the MMA, the activations its 8 or 16 columns, so unused
// rows cost next to nothing. Warp w takes the inputs 32*(w + 8i) ..+31 in ascending order, and the
// eight sums are added in the order of warps: the order of a sum depends on `in` alone.
namespace tandem::cuda {
namespace {

constexpr int kConsumers = kSmallWarps * 32;
constexpr int kThreads = kConsumers + 32;
static_assert(kConsumers == kNormThreads);

struct Task {
  const __nv_bfloat16* weight;
  const __nv_bfloat16* bias;
  const __nv_bfloat16* x;
  const float* residual;
  const uint32_t* index;
  const float* norm;
  float eps;
  void* result;
  int in;
  int out;
  int rows;
  int tile_rows;
  int chunk;
  int stages;
};

// Shared memory, laid out as linear_small_layout.h says.
struct Memory {
  uint64_t* full;
  uint64_t* empty;
  float* sums;
  char* resident;
  char* stages;
};

__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// The first output of a block; outputs come in units of two when gate and up must stay together.
template <SmallEpilogue kEpilogue>
__device__ __forceinline__ int first_output(const Task& task, unsigned block) {
  constexpr int kUnit = kEpilogue == SmallEpilogue::kSiluMul ? 2 : 1;
  return static_cast<int>(int64_t{task.out / kUnit} * block / gridDim.x) * kUnit;
}

template <bool kResident>
__device__ __forceinline__ void produce(const Task& task, const Memory& memory, int begin, int end,
                                        int lane) {
  const uint64_t weights = evict_first_policy();
  const auto pitch = static_cast<int>(small_pitch(task.chunk));
  const int stage_bytes = (task.tile_rows + (kResident ? 0 : task.rows)) * pitch;
  const int chunks = (task.in + task.chunk - 1) / task.chunk;
  const int tiles = (end - begin + task.tile_rows - 1) / task.tile_rows;
  const int total = tiles * chunks;
  const auto load_x = [&](int step) {
    const int at = step % chunks * task.chunk;
    const int bytes = min(task.chunk, task.in - at) * 2;
    char* stage = memory.stages + step % task.stages * stage_bytes + task.tile_rows * pitch;
    if (lane < task.rows)
      bulk_load(stage + lane * pitch, task.x + int64_t{lane} * task.in + at,
                static_cast<uint32_t>(bytes), &memory.full[step % task.stages]);
  };
  bool waited = false;
  for (int step = 0; step < total; ++step) {
    const int stage = step % task.stages;
    if (step >= task.stages) {
      if (!kResident && !waited) {
        wait_for_previous();
        for (int s = 0; s < task.stages; ++s) load_x(s);
        waited = true;
      }
      barrier_wait(&memory.empty[stage], (step / task.stages + 1) % 2);
    }
    const int row = begin + step / chunks * task.tile_rows;
    const int rows = min(task.tile_rows, end - row);
    const int at = step % chunks * task.chunk;
    const int bytes = min(task.chunk, task.in - at) * 2;
    if (lane == 0)
      barrier_expect(&memory.full[stage],
                     static_cast<uint32_t>((rows + (kResident ? 0 : task.rows)) * bytes));
    __syncwarp();
    if (lane < rows)
      bulk_load(memory.stages + stage * stage_bytes + lane * pitch,
                task.weight + int64_t{row + lane} * task.in + at, static_cast<uint32_t>(bytes),
                &memory.full[stage], weights);
    if (!kResident && waited) load_x(step);
  }
  if (!kResident && !waited) {
    wait_for_previous();
    for (int s = 0; s < total; ++s) load_x(s);
  }
}

// Norms the rows into shared memory, by all consumers.
__device__ __forceinline__ void norm_rows(const Task& task, const Memory& memory, int t) {
  const auto pitch = static_cast<int>(small_pitch(task.in));
  float* sums = memory.sums;
  for (int r = 0; r < task.rows; ++r) {
    const int64_t row = task.index != nullptr ? int64_t{task.index[r]} : r;
    const float share = warp_sum(square_share(task.residual + row * task.in, task.in, t));
    if (t % 32 == 0) sums[r * 8 + t / 32] = share;
  }
  consumers_sync();
  for (int r = 0; r < task.rows; ++r) {
    const int64_t row = task.index != nullptr ? int64_t{task.index[r]} : r;
    const float* x = task.residual + row * task.in;
    const float factor = norm_factor(sums + r * 8, task.in, task.eps);
    char* to = memory.resident + r * pitch;
#pragma unroll 4
    for (int i = t * 4; i < task.in; i += kConsumers * 4) {
      const float4 v = *reinterpret_cast<const float4*>(x + i);
      const float4 w = *reinterpret_cast<const float4*>(task.norm + i);
      *reinterpret_cast<uint2*>(to + i * 2) = {
          pack_pair(normed(v.x, factor, w.x), normed(v.y, factor, w.y)),
          pack_pair(normed(v.z, factor, w.z), normed(v.w, factor, w.w))};
    }
  }
  consumers_sync();
}

// Where a lane's operands begin in a stage: rows that do not exist stand for the last that does,
// since what lies behind it may be no memory at all. Their results are dropped.
template <int kColumns>
struct LaneOffsets {
  uint32_t weights[2];
  uint32_t x[kColumns / 8];
};

// One warp's products of one chunk. `valid` inputs; past them shared memory holds anything.
template <int kColumns>
__device__ __forceinline__ void multiply(float (&sums)[2][kColumns / 8][4], uint32_t weights,
                                         uint32_t x, const LaneOffsets<kColumns>& lanes, bool both,
                                         int first, int valid) {
  for (int k = first; k < valid; k += 32 * static_cast<int>(kSmallWarps)) {
    uint32_t b[kColumns / 8][4];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      load_matrices(b[n], x + lanes.x[n] + static_cast<uint32_t>(k * 2));
    uint32_t a[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
      if (m == 0 || both)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          load_matrices(a[m][h],
                        weights + lanes.weights[m] + static_cast<uint32_t>((k + h * 16) * 2));
    if (k + 32 > valid) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k + j * 8 >= valid) {
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n) b[n][j] = 0;
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            a[m][j / 2][j % 2 * 2] = 0;
            a[m][j / 2][j % 2 * 2 + 1] = 0;
          }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = 0; m < 2; ++m)
        if (m == 0 || both)
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n)
            mma_bf16(sums[m][n], a[m][h], b[n][h * 2], b[n][h * 2 + 1]);
  }
}

// Sum of the eight warps for weight row `r` of the tile and activation row `c`.
template <int kColumns>
__device__ __forceinline__ float total(const float* sums, int r, int c) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < static_cast<int>(kSmallWarps); ++w)
    sum += sums[(w * static_cast<int>(kSmallTileRows) + r) * kColumns + c];
  return sum;
}

__device__ __forceinline__ float bias_of(const Task& task, int output) {
  return task.bias == nullptr ? 0.0F : __bfloat162float(task.bias[output]);
}

template <SmallEpilogue kEpilogue, int kColumns>
__device__ __forceinline__ void finish(const Task& task, const float* sums, int row, int rows,
                                       const float (&before)[kColumns / 8], int t) {
  constexpr int kRows = static_cast<int>(kSmallTileRows);
  if constexpr (kEpilogue == SmallEpilogue::kSiluMul) {
    auto* out = static_cast<__nv_bfloat16*>(task.result);
    const int c = t / (kRows / 2);
    const int r = t % (kRows / 2) * 2;
    if (r >= rows || c >= task.rows) return;
    const float gate = total<kColumns>(sums, r, c) + bias_of(task, row + r);
    const float up = total<kColumns>(sums, r + 1, c) + bias_of(task, row + r + 1);
    out[int64_t{c} * (task.out / 2) + (row + r) / 2] = __float2bfloat16_rn(silu(gate) * up);
  } else {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const int r = t % kRows;
      const int c = t / kRows + i * 8;
      if (r >= rows || c >= task.rows) continue;
      const float y = total<kColumns>(sums, r, c) + bias_of(task, row + r);
      const int64_t at = int64_t{c} * task.out + row + r;
      if constexpr (kEpilogue == SmallEpilogue::kStore)
        static_cast<__nv_bfloat16*>(task.result)[at] = __float2bfloat16_rn(y);
      else if constexpr (kEpilogue == SmallEpilogue::kAdd)
        static_cast<float*>(task.result)[at] = before[i] + y;
      else
        static_cast<float*>(task.result)[at] = y;
    }
  }
}

template <bool kResident, SmallEpilogue kEpilogue, int kColumns>
__device__ __forceinline__ void consume(const Task& task, const Memory& memory, int begin, int end,
                                        int t) {
  constexpr int kRows = static_cast<int>(kSmallTileRows);
  const int lane = t % 32;
  const int warp = t / 32;
  const auto pitch = static_cast<int>(small_pitch(task.chunk));
  const int stage_bytes = (task.tile_rows + (kResident ? 0 : task.rows)) * pitch;
  const auto x_pitch = kResident ? static_cast<int>(small_pitch(task.in)) : pitch;
  LaneOffsets<kColumns> lanes;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
    lanes.x[n] =
        static_cast<uint32_t>(min(lane % 8 + n * 8, task.rows - 1) * x_pitch + lane / 8 * 16);
  int stage = 0;
  uint32_t parity = 0;
  for (int row = begin; row < end; row += task.tile_rows) {
    const int rows = min(task.tile_rows, end - row);
#pragma unroll
    for (int m = 0; m < 2; ++m)
      lanes.weights[m] =
          static_cast<uint32_t>(min(lane % 16 + m * 16, rows - 1) * pitch + lane / 16 * 16);
    float before[kColumns / 8] = {};
    if constexpr (kEpilogue == SmallEpilogue::kAdd) {
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        if (t % kRows < rows && t / kRows + i * 8 < task.rows)
          before[i] = static_cast<const float*>(
              task.result)[int64_t{t / kRows + i * 8} * task.out + row + t % kRows];
    }
    float sums[2][kColumns / 8][4] = {};
    for (int at = 0; at < task.in; at += task.chunk) {
      barrier_wait(&memory.full[stage], parity);
      const uint32_t weights = shared_address(memory.stages + stage * stage_bytes);
      const uint32_t x = kResident ? shared_address(memory.resident) + static_cast<uint32_t>(at * 2)
                                   : weights + static_cast<uint32_t>(task.tile_rows * pitch);
      multiply<kColumns>(sums, weights, x, lanes, rows > 16, warp * 32,
                         min(task.chunk, task.in - at));
      __syncwarp();
      if (lane == 0) barrier_arrive(&memory.empty[stage]);
      if (++stage == task.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    float* mine = memory.sums + warp * kRows * kColumns;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          *reinterpret_cast<float2*>(mine + (m * 16 + h * 8 + lane / 4) * kColumns + n * 8 +
                                     lane % 4 * 2) = {sums[m][n][h * 2], sums[m][n][h * 2 + 1]};
    consumers_sync();
    finish<kEpilogue, kColumns>(task, memory.sums, row, rows, before, t);
    consumers_sync();
  }
}

template <bool kResident, SmallEpilogue kEpilogue, int kColumns>
__global__ void __launch_bounds__(kThreads, 1) linear_small_kernel(Task task) {
  extern __shared__ __align__(128) char shared[];
  Memory memory;
  memory.full = reinterpret_cast<uint64_t*>(shared);
  memory.empty = memory.full + 8;
  memory.sums = reinterpret_cast<float*>(shared + kSmallBarrierBytes);
  memory.resident = shared + small_fixed_bytes(kColumns);
  memory.stages = memory.resident +
                  (kResident ? small_resident_bytes(task.in, static_cast<uint32_t>(task.rows)) : 0);
  const auto t = static_cast<int>(threadIdx.x);
  if (t == kConsumers) {
    for (int s = 0; s < task.stages; ++s) {
      barrier_init(&memory.full[s], 1);
      barrier_init(&memory.empty[s], kSmallWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  allow_next();
  const int begin = first_output<kEpilogue>(task, blockIdx.x);
  const int end = first_output<kEpilogue>(task, blockIdx.x + 1);
  if (t >= kConsumers) {
    produce<kResident>(task, memory, begin, end, t - kConsumers);
    return;
  }
  wait_for_previous();
  if constexpr (kResident) norm_rows(task, memory, t);
  consume<kResident, kEpilogue, kColumns>(task, memory, begin, end, t);
}

// Any number of inputs, for models whose rows are not whole 16-byte units: a warp an output.
template <SmallEpilogue kEpilogue>
__global__ void __launch_bounds__(256) linear_plain_kernel(Task task) {
  allow_next();
  wait_for_previous();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto output = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32);
  const auto c = static_cast<int64_t>(blockIdx.y);
  const auto dot = [&](int row) {
    float sum = 0;
    for (int i = lane; i < task.in; i += 32)
      sum = fmaf(__bfloat162float(task.weight[int64_t{row} * task.in + i]),
                 __bfloat162float(task.x[c * task.in + i]), sum);
    return warp_sum(sum) + bias_of(task, row);
  };
  if constexpr (kEpilogue == SmallEpilogue::kSiluMul) {
    if (output * 2 >= task.out) return;
    const float gate = dot(output * 2);
    const float up = dot(output * 2 + 1);
    if (lane == 0)
      static_cast<__nv_bfloat16*>(task.result)[c * (task.out / 2) + output] =
          __float2bfloat16_rn(silu(gate) * up);
  } else {
    if (output >= task.out) return;
    const float y = dot(output);
    if (lane != 0) return;
    const int64_t at = c * task.out + output;
    if constexpr (kEpilogue == SmallEpilogue::kStore)
      static_cast<__nv_bfloat16*>(task.result)[at] = __float2bfloat16_rn(y);
    else if constexpr (kEpilogue == SmallEpilogue::kAdd)
      static_cast<float*>(task.result)[at] += y;
    else
      static_cast<float*>(task.result)[at] = y;
  }
}

using Kernel = void (*)(Task);

template <SmallEpilogue kEpilogue>
Kernel pick(bool resident, bool wide) {
  if (resident)
    return wide ? linear_small_kernel<true, kEpilogue, 16>
                : linear_small_kernel<true, kEpilogue, 8>;
  return wide ? linear_small_kernel<false, kEpilogue, 16>
              : linear_small_kernel<false, kEpilogue, 8>;
}

Kernel pick(SmallEpilogue epilogue, bool resident, bool wide) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return pick<SmallEpilogue::kStore>(resident, wide);
    case SmallEpilogue::kAdd:
      return pick<SmallEpilogue::kAdd>(resident, wide);
    case SmallEpilogue::kSiluMul:
      return pick<SmallEpilogue::kSiluMul>(resident, wide);
    case SmallEpilogue::kStoreFloat:
      return pick<SmallEpilogue::kStoreFloat>(resident, wide);
  }
  return nullptr;
}

Kernel pick_plain(SmallEpilogue epilogue) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return linear_plain_kernel<SmallEpilogue::kStore>;
    case SmallEpilogue::kAdd:
      return linear_plain_kernel<SmallEpilogue::kAdd>;
    case SmallEpilogue::kSiluMul:
      return linear_plain_kernel<SmallEpilogue::kSiluMul>;
    case SmallEpilogue::kStoreFloat:
      return linear_plain_kernel<SmallEpilogue::kStoreFloat>;
  }
  return nullptr;
}

Task raw_task(const SmallLinear& task, const SmallPlan& plan) {
  return {reinterpret_cast<const __nv_bfloat16*>(task.weight),
          reinterpret_cast<const __nv_bfloat16*>(task.bias),
          reinterpret_cast<const __nv_bfloat16*>(task.x),
          task.residual,
          task.index,
          task.norm,
          task.eps,
          task.result,
          static_cast<int>(task.in),
          static_cast<int>(task.out),
          static_cast<int>(task.rows),
          static_cast<int>(plan.tile_rows),
          static_cast<int>(plan.chunk),
          static_cast<int>(plan.stages)};
}

cudaError_t launch_plain(const SmallLinear& task, const Task& raw, cudaStream_t stream) {
  const int64_t outputs = task.epilogue == SmallEpilogue::kSiluMul ? task.out / 2 : task.out;
  return launch_chained(pick_plain(task.epilogue),
                        dim3(static_cast<unsigned>((outputs + 7) / 8), task.rows), dim3(256), 0,
                        stream, raw);
}

}  // namespace

cudaError_t linear_plain(const SmallLinear& task, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  if (task.x == nullptr) return cudaErrorInvalidValue;
  return launch_plain(task, raw_task(task, {}), stream);
}

cudaError_t prepare_small_linear() {
  for (const SmallEpilogue epilogue : {SmallEpilogue::kStore, SmallEpilogue::kAdd,
                                       SmallEpilogue::kSiluMul, SmallEpilogue::kStoreFloat})
    for (const bool resident : {false, true})
      for (const bool wide : {false, true}) {
        const cudaError_t error =
            cudaFuncSetAttribute(reinterpret_cast<const void*>(pick(epilogue, resident, wide)),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSmallSharedLimit);
        if (error != cudaSuccess) return error;
      }
  return cudaSuccess;
}

cudaError_t linear_small(const SmallLinear& task, const SmallPlan& plan, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  if (task.rows > kSmallRows) return cudaErrorInvalidValue;
  const bool any = task.in % 8 != 0;
  Task raw = raw_task(task, plan);
  if (task.norm != nullptr && (any || !plan.resident)) {
    if (task.scratch == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = rms_norm(
        {task.residual, task.index, task.norm, task.eps, task.rows, task.in, task.scratch}, stream);
    if (error != cudaSuccess) return error;
    raw.x = reinterpret_cast<const __nv_bfloat16*>(task.scratch);
  }
  if (any) return launch_plain(task, raw, stream);
  return launch_chained(pick(task.epilogue, plan.resident, task.rows > 8), dim3(plan.blocks),
                        dim3(kThreads), plan.shared_bytes, stream, raw);
}

}  // namespace tandem::cuda
