#include "kernels/cuda/linear_small.h"

#include <cuda_bf16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_small_layout.h"
#include "kernels/cuda/linear_small_multiply.cuh"
#include "kernels/cuda/linear_small_norm.cuh"
#include "kernels/cuda/linear_units.h"
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
// Bulk copies are issued lane by lane, some 70 cycles each, so one warp alone could not keep up
// with the memory (H200).
constexpr int kProducerWarps = 4;
constexpr int kThreads = kConsumers + kProducerWarps * 32;
static_assert(kConsumers == kNormThreads);

struct Task {
  const void* weight;
  const float* scales;  // of FP8 weights
  const __nv_bfloat16* bias;
  const __nv_bfloat16* x;
  const float* residual;
  const uint32_t* index;
  const float* norm;
  const float* factors;  // of the rows, where another kernel has left them
  float eps;
  void* result;
  const ExpertTile* tiles;
  const int32_t* tile_count;
  const int32_t* x_index;
  int in;
  int out;  // of one expert, where there are several
  int rows;
  int tile_rows;
  int chunk;
  int stages;
};

enum class Input : uint8_t {
  kNormed,    // float rows, normed into shared memory
  kLoaded,    // bf16 rows, copied to shared memory once
  kStreamed,  // bf16 rows come with the stages
  kExperts,   // the same, of the rows that chose an expert
};
[[nodiscard]] __host__ __device__ constexpr bool is_resident(Input input) {
  return input == Input::kNormed || input == Input::kLoaded;
}

// Shared memory, laid out as linear_small_layout.h says.
struct Memory {
  uint64_t* full;
  uint64_t* empty;
  uint64_t* loaded;  // the resident rows
  float* squares;
  float* factors;
  float* sums;
  char* resident;
  char* stages;
};

__device__ __forceinline__ void consumers_sync() { norm_sync(); }

// A block's outputs, as positions in the list of all outputs; of experts those of every tile count.
struct Range {
  int begin;
  int end;
};

// Outputs come in units of two when gate and up must stay together.
template <Input kInput, SmallEpilogue kEpilogue>
__device__ __forceinline__ Range range_of_block(const Task& task) {
  constexpr auto kUnit = static_cast<int>(output_unit(kEpilogue));
  int64_t units = task.out / kUnit;
  if constexpr (kInput == Input::kExperts) units *= *task.tile_count;
  return {static_cast<int>(units * blockIdx.x / gridDim.x) * kUnit,
          static_cast<int>(units * (blockIdx.x + 1) / gridDim.x) * kUnit};
}

// Consecutive outputs of one weight matrix and the rows of activations they are made for.
struct Tile {
  int64_t weight_row;  // in the weights of all experts
  int output;          // the first
  int count;
  int first_x;  // of the rows; results go to rows of the same numbers
  int rows;
};

// How a stage lies in shared memory: weights, then the rows that come with them. In bytes.
struct Stage {
  int pitch;    // of weights
  int x_pitch;  // of the rows, wherever they are
  int x_at;
  int bytes;
};

template <Input kInput, WeightType kWeight>
__device__ __forceinline__ Stage stage_of(const Task& task) {
  constexpr bool kResident = is_resident(kInput);
  Stage stage;
  stage.pitch = static_cast<int>(small_weight_pitch(task.chunk, element_bytes(kWeight)));
  stage.x_pitch = static_cast<int>(small_pitch(kResident ? task.in : task.chunk));
  stage.x_at = task.tile_rows * stage.pitch;
  stage.bytes = stage.x_at + (kResident ? 0 : task.rows * stage.x_pitch);
  return stage;
}

template <Input kInput>
__device__ __forceinline__ Tile tile_at(const Task& task, int position, int end) {
  if constexpr (kInput == Input::kExperts) {
    const ExpertTile expert = task.tiles[position / task.out];
    const int output = position % task.out;
    return {int64_t{expert.expert} * task.out + output, output,
            min(task.tile_rows, min(task.out - output, end - position)), expert.first,
            expert.count};
  }
  return {position, position, min(task.tile_rows, end - position), 0, task.rows};
}

template <Input kInput, WeightType kWeight>
__device__ __forceinline__ void produce(const Task& task, const Memory& memory, Range range,
                                        int t) {
  constexpr bool kLoadsX = !is_resident(kInput);
  // The row that this thread loads: the rows are dealt out to the warps one by one.
  const int lane = t % 32 * kProducerWarps + t / 32;
  const uint64_t weights = evict_first_policy();
  constexpr int kElement = element_bytes(kWeight);
  const Stage layout = stage_of<kInput, kWeight>(task);
  const auto load_x = [&](int stage, const __nv_bfloat16* x, int bytes) {
    bulk_load(memory.stages + stage * layout.bytes + layout.x_at + lane * layout.x_pitch, x,
              static_cast<uint32_t>(bytes), &memory.full[stage]);
  };
  // Weights of the first stages are on their way before the rows are known to be there.
  bool waited = kInput == Input::kNormed || kInput == Input::kExperts;
  const auto load_first_x = [&](int steps) {
    wait_for_previous();
    waited = true;
    if constexpr (kInput == Input::kLoaded) {
      if (t == 0) barrier_expect(memory.loaded, static_cast<uint32_t>(task.rows * task.in * 2));
      if (lane < task.rows)
        bulk_load(memory.resident + lane * static_cast<int>(small_pitch(task.in)),
                  task.x + int64_t{lane} * task.in, static_cast<uint32_t>(task.in * 2),
                  memory.loaded);
    } else {
      for (int step = 0, at = 0; step < steps; ++step) {
        if (lane < task.rows)
          load_x(step, task.x + int64_t{lane} * task.in + at, min(task.chunk, task.in - at) * 2);
        at += task.chunk;
        if (at >= task.in) at = 0;
      }
    }
  };
  int stage = 0;
  int step = 0;
  uint32_t parity = 1;
  for (int position = range.begin; position < range.end;) {
    const Tile tile = tile_at<kInput>(task, position, range.end);
    const char* weight =
        static_cast<const char*>(task.weight) + (tile.weight_row + lane) * task.in * kElement;
    const __nv_bfloat16* x = nullptr;
    if (kLoadsX && lane < tile.rows) {
      const int row = tile.first_x + lane;
      x = task.x +
          int64_t{kInput == Input::kExperts && task.x_index != nullptr ? task.x_index[row] : row} *
              task.in;
    }
    for (int at = 0; at < task.in; at += task.chunk, ++step) {
      if (step >= task.stages) {
        if (!waited) load_first_x(task.stages);
        barrier_wait(&memory.empty[stage], parity);
      }
      const int inputs = min(task.chunk, task.in - at);
      // Every warp arrives: one without rows here could else be left a whole turn of the ring
      // behind and wait for a phase that was long over.
      if (t == 0)
        barrier_expect(&memory.full[stage],
                       static_cast<uint32_t>(
                           (tile.count * kElement + (kLoadsX ? tile.rows * 2 : 0)) * inputs));
      else if (t % 32 == 0)
        barrier_arrive(&memory.full[stage]);
      __syncwarp();
      if (lane < tile.count)
        bulk_load(memory.stages + stage * layout.bytes + lane * layout.pitch,
                  weight + at * kElement, static_cast<uint32_t>(inputs * kElement),
                  &memory.full[stage], weights);
      if (kLoadsX && waited && lane < tile.rows) load_x(stage, x + at, inputs * 2);
      if (++stage == task.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    position += tile.count;
  }
  if (!waited) load_first_x(step);
}

// Sum of the eight warps for weight row `r` of the tile and activation row `c`.
// Not fused with the addition of a bias, which the compiler would do in some variants only.
template <int kColumns>
__device__ __forceinline__ float total(const Memory& memory, int r, int c) {
  const float* sums = memory.sums;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < static_cast<int>(kSmallWarps); ++w)
    sum += sums[(w * static_cast<int>(kSmallTileRows) + r) * kColumns + c];
  return __fmul_rn(sum, memory.factors[c]);
}

// What the sums of an output of FP8 weights are multiplied by.
template <WeightType kWeight>
__device__ __forceinline__ float scaled(const Task& task, float sum, int output) {
  if constexpr (kWeight == WeightType::kFp8) return __fmul_rn(sum, task.scales[output]);
  return sum;
}

__device__ __forceinline__ float bias_of(const Task& task, int output) {
  return task.bias == nullptr ? 0.0F : __bfloat162float(task.bias[output]);
}

template <SmallEpilogue kEpilogue, int kColumns, WeightType kWeight>
__device__ __forceinline__ void finish(const Task& task, const Memory& memory, const Tile& tile,
                                       const float (&before)[kColumns / 8], int t) {
  constexpr int kRows = static_cast<int>(kSmallTileRows);
  if constexpr (kEpilogue == SmallEpilogue::kSiluMul) {
    auto* out = static_cast<__nv_bfloat16*>(task.result);
    const int c = t / (kRows / 2);
    const int r = t % (kRows / 2) * 2;
    if (r >= tile.count || c >= tile.rows) return;
    const auto product = [&](int row) {
      return scaled<kWeight>(task, total<kColumns>(memory, row, c), tile.output + row) +
             bias_of(task, tile.output + row);
    };
    const float gate = product(r);
    const float up = product(r + 1);
    out[int64_t{tile.first_x + c} * (task.out / 2) + (tile.output + r) / 2] =
        __float2bfloat16_rn(silu(gate) * up);
  } else {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const int r = t % kRows;
      const int c = t / kRows + i * 8;
      if (r >= tile.count || c >= tile.rows) continue;
      const float y = scaled<kWeight>(task, total<kColumns>(memory, r, c), tile.output + r) +
                      bias_of(task, tile.output + r);
      const int64_t at = int64_t{tile.first_x + c} * task.out + tile.output + r;
      if constexpr (kEpilogue == SmallEpilogue::kStore)
        static_cast<__nv_bfloat16*>(task.result)[at] = __float2bfloat16_rn(y);
      else if constexpr (kEpilogue == SmallEpilogue::kAdd)
        static_cast<float*>(task.result)[at] = before[i] + y;
      else
        static_cast<float*>(task.result)[at] = y;
    }
  }
}

template <Input kInput, SmallEpilogue kEpilogue, int kColumns, WeightType kWeight>
__device__ __forceinline__ void consume(const Task& task, const Memory& memory, Range range,
                                        int t) {
  constexpr int kRows = static_cast<int>(kSmallTileRows);
  constexpr bool kResident = is_resident(kInput);
  const int lane = t % 32;
  const int warp = t / 32;
  const Stage layout = stage_of<kInput, kWeight>(task);
  int stage = 0;
  uint32_t parity = 0;
  for (int position = range.begin; position < range.end;) {
    const Tile tile = tile_at<kInput>(task, position, range.end);
    position += tile.count;
    const auto lanes =
        lane_offsets<kColumns, kWeight>(lane, tile.rows, layout.x_pitch, tile.count, layout.pitch);
    float before[kColumns / 8] = {};
    if constexpr (kEpilogue == SmallEpilogue::kAdd) {
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        if (t % kRows < tile.count && t / kRows + i * 8 < tile.rows)
          before[i] = static_cast<const float*>(
              task.result)[int64_t{t / kRows + i * 8} * task.out + tile.output + t % kRows];
    }
    float sums[2][kColumns / 8][4] = {};
    for (int at = 0; at < task.in; at += task.chunk) {
      barrier_wait(&memory.full[stage], parity);
      const uint32_t weights = shared_address(memory.stages + stage * layout.bytes);
      const uint32_t x = kResident ? shared_address(memory.resident) + static_cast<uint32_t>(at * 2)
                                   : weights + static_cast<uint32_t>(layout.x_at);
      multiply<kColumns, kWeight>(sums, weights, x, lanes, tile.count > 16, warp * 32,
                                  min(task.chunk, task.in - at));
      // Every lane for what it has read: as fast as one for its warp (H200).
      barrier_arrive(&memory.empty[stage]);
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
    finish<kEpilogue, kColumns, kWeight>(task, memory, tile, before, t);
    consumers_sync();
  }
}

template <Input kInput, SmallEpilogue kEpilogue, int kColumns,
          WeightType kWeight = WeightType::kBf16>
__global__ void __launch_bounds__(kThreads, kColumns == 8 ? 2 : 1) linear_small_kernel(Task task) {
  constexpr bool kResident = is_resident(kInput);
  extern __shared__ __align__(128) char shared[];
  Memory memory;
  memory.full = reinterpret_cast<uint64_t*>(shared);
  memory.empty = memory.full + 8;
  memory.loaded = memory.empty + 8;
  memory.squares = reinterpret_cast<float*>(shared + kSmallSquaresAt);
  memory.factors = reinterpret_cast<float*>(shared + kSmallFactorsAt);
  memory.sums = reinterpret_cast<float*>(shared + kSmallHeaderBytes);
  memory.resident = shared + small_fixed_bytes(kColumns);
  memory.stages = memory.resident +
                  (kResident ? small_resident_bytes(task.in, static_cast<uint32_t>(task.rows)) : 0);
  const auto t = static_cast<int>(threadIdx.x);
  if (t == kConsumers) {
    for (int s = 0; s < task.stages; ++s) {
      barrier_init(&memory.full[s], kProducerWarps);
      barrier_init(&memory.empty[s], kConsumers);
    }
    barrier_init(memory.loaded, 1);
    barrier_init_fence();
  }
  __syncthreads();
  allow_next();
  HeldRow norm{};
  if (kInput == Input::kNormed && t < kConsumers && task.in <= kHeldInputs)
    norm = hold_row(task.norm, task.in, t);
  // Which experts there are is known only now; all else a producer needs, before.
  if (kInput == Input::kExperts || t < kConsumers) wait_for_previous();
  const Range range = range_of_block<kInput, kEpilogue>(task);
  if (t >= kConsumers) {
    produce<kInput, kWeight>(task, memory, range, t - kConsumers);
    return;
  }
  if constexpr (kInput == Input::kNormed) {
    scale_rows({task.residual, task.index, task.norm, task.eps, task.in, task.rows, memory.squares,
                memory.factors, memory.resident, static_cast<int>(small_pitch(task.in))},
               norm, t);
  } else if (t < task.rows) {
    memory.factors[t] = task.factors == nullptr ? 1.0F : task.factors[t];
  }
  if constexpr (kInput == Input::kLoaded) barrier_wait(memory.loaded, 0);
  consume<kInput, kEpilogue, kColumns, kWeight>(task, memory, range, t);
}

using Kernel = void (*)(Task);

template <Input kInput, SmallEpilogue kEpilogue, WeightType kWeight = WeightType::kBf16>
Kernel pick_columns(uint32_t rows) {
  return small_columns(rows) == 16 ? linear_small_kernel<kInput, kEpilogue, 16, kWeight>
                                   : linear_small_kernel<kInput, kEpilogue, 8, kWeight>;
}

template <SmallEpilogue kEpilogue, WeightType kWeight = WeightType::kBf16>
Kernel pick_input(SmallInput input, uint32_t rows) {
  switch (input) {
    case SmallInput::kNormed:
      return pick_columns<Input::kNormed, kEpilogue, kWeight>(rows);
    case SmallInput::kLoaded:
      return pick_columns<Input::kLoaded, kEpilogue, kWeight>(rows);
    case SmallInput::kStreamed:
      return pick_columns<Input::kStreamed, kEpilogue, kWeight>(rows);
  }
  return nullptr;
}

Kernel pick_fp8(SmallEpilogue epilogue, SmallInput input, uint32_t rows) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return pick_input<SmallEpilogue::kStore, WeightType::kFp8>(input, rows);
    case SmallEpilogue::kAdd:
      return pick_input<SmallEpilogue::kAdd, WeightType::kFp8>(input, rows);
    case SmallEpilogue::kSiluMul:
      return pick_input<SmallEpilogue::kSiluMul, WeightType::kFp8>(input, rows);
    case SmallEpilogue::kStoreFloat:
      break;  // the head stays bf16
  }
  return nullptr;
}

Kernel pick(SmallEpilogue epilogue, SmallInput input, uint32_t rows) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return pick_input<SmallEpilogue::kStore>(input, rows);
    case SmallEpilogue::kAdd:
      return pick_input<SmallEpilogue::kAdd>(input, rows);
    case SmallEpilogue::kSiluMul:
      return pick_input<SmallEpilogue::kSiluMul>(input, rows);
    case SmallEpilogue::kStoreFloat:
      return pick_input<SmallEpilogue::kStoreFloat>(input, rows);
  }
  return nullptr;
}

Kernel pick_experts(SmallEpilogue epilogue, uint32_t rows) {
  return epilogue == SmallEpilogue::kSiluMul
             ? pick_columns<Input::kExperts, SmallEpilogue::kSiluMul>(rows)
             : pick_columns<Input::kExperts, SmallEpilogue::kStore>(rows);
}

Task raw_task(const SmallLinear& task, const SmallPlan& plan) {
  Task raw{};
  raw.weight = task.weight;
  if (task.fp8 != nullptr) raw.weight = task.fp8;
  raw.scales = task.scales;
  raw.bias = reinterpret_cast<const __nv_bfloat16*>(task.bias);
  raw.x = reinterpret_cast<const __nv_bfloat16*>(task.x);
  raw.residual = task.residual;
  raw.index = task.index;
  raw.norm = task.norm;
  raw.eps = task.eps;
  raw.result = task.result;
  raw.in = static_cast<int>(task.in);
  raw.out = static_cast<int>(task.out);
  raw.rows = static_cast<int>(task.rows);
  raw.tile_rows = static_cast<int>(plan.tile_rows);
  raw.chunk = static_cast<int>(plan.chunk);
  raw.stages = static_cast<int>(plan.stages);
  return raw;
}

cudaError_t lift_limit(Kernel kernel) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, kSmallSharedLimit);
}

}  // namespace

cudaError_t prepare_small_linear() {
  for (const uint32_t rows : {8U, 16U}) {
    for (const SmallEpilogue epilogue : {SmallEpilogue::kStore, SmallEpilogue::kAdd,
                                         SmallEpilogue::kSiluMul, SmallEpilogue::kStoreFloat})
      for (const SmallInput input :
           {SmallInput::kNormed, SmallInput::kLoaded, SmallInput::kStreamed})
        for (const Kernel kernel : {pick(epilogue, input, rows), pick_fp8(epilogue, input, rows)}) {
          if (kernel == nullptr) continue;
          if (const cudaError_t error = lift_limit(kernel); error != cudaSuccess) return error;
        }
    for (const SmallEpilogue epilogue : {SmallEpilogue::kStore, SmallEpilogue::kSiluMul})
      if (const cudaError_t error = lift_limit(pick_experts(epilogue, rows)); error != cudaSuccess)
        return error;
  }
  return cudaSuccess;
}

cudaError_t linear_small(const SmallLinear& task, const SmallPlan& plan, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  if (task.rows > kSmallRows) return cudaErrorInvalidValue;
  const bool fp8 = task.fp8 != nullptr;
  if (fp8 && (task.in % 16 != 0 || task.epilogue == SmallEpilogue::kStoreFloat))
    return cudaErrorInvalidValue;
  const bool plain = task.in % 8 != 0;
  SmallLinear ready = task;
  if (task.norm != nullptr && (plain || plan.input != SmallInput::kNormed)) {
    if (task.scratch == nullptr || task.scratch_factors == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error =
        rms_norm({task.residual, task.index, task.norm, task.eps, task.rows, task.in, task.scratch,
                  plain ? nullptr : task.scratch_factors},
                 stream);
    if (error != cudaSuccess) return error;
    ready.x = task.scratch;
  }
  if (plain) return linear_plain(ready, stream);
  Task raw = raw_task(ready, plan);
  if (task.norm != nullptr && plan.input != SmallInput::kNormed) raw.factors = task.scratch_factors;
  const Kernel kernel = fp8 ? pick_fp8(task.epilogue, plan.input, task.rows)
                            : pick(task.epilogue, plan.input, task.rows);
  return launch_chained(kernel, dim3(plan.blocks), dim3(kThreads), plan.shared_bytes, stream, raw);
}

cudaError_t linear_small_experts(const SmallLinear& task, const SmallExperts& experts,
                                 const SmallPlan& plan, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  const bool known =
      task.epilogue == SmallEpilogue::kStore || task.epilogue == SmallEpilogue::kSiluMul;
  if (task.rows > kSmallRows || task.in % 8 != 0 || task.x == nullptr || !known)
    return cudaErrorInvalidValue;
  Task raw = raw_task(task, plan);
  raw.tiles = experts.tiles;
  raw.tile_count = experts.tile_count;
  raw.x_index = experts.x_index;
  return launch_chained(pick_experts(task.epilogue, task.rows), dim3(plan.blocks), dim3(kThreads),
                        plan.shared_bytes, stream, raw);
}

}  // namespace tandem::cuda
