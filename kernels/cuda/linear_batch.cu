#include "kernels/cuda/linear_batch.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_batch_layout.h"
#include "kernels/cuda/linear_batch_multiply.cuh"
#include "kernels/cuda/linear_units.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tma.cuh"

// The weights are the M of wgmma and the rows of activations its N. A cluster of one or a few
// blocks owns a contiguous range of outputs, i.e. of weight rows, and goes through it tile by tile;
// each of its blocks takes a part of the inputs, and within a block the warpgroups may take the
// stages in turns. One thread streams weights and activations into a ring of stages; with the
// weights it begins before the previous kernel has ended, since they never change. Whoever has a
// part of an output's sum is a member; at the end of a tile members send each other their sums,
// eight rows to each in turn, and add them up in the order of members.
namespace tandem::cuda {
namespace {

constexpr int kGroupThreads = static_cast<int>(kBatchGroupThreads);
constexpr int kGroupOutputs = static_cast<int>(kBatchGroupOutputs);

struct Task {
  const float* scales;  // of FP8 weights
  const __nv_bfloat16* bias;
  void* result;
  int out;
  int rows;
  int unit;       // outputs that stay together
  int steps;      // stages of a tile, of all blocks of a cluster
  int split;      // blocks of a cluster
  int tiles;      // of a cluster
  int tile_rows;  // outputs of a tile
  int stages;
  int buffers;
  SmallEpilogue epilogue;
};

struct Block {
  int rank;   // in its cluster
  int begin;  // outputs of the cluster
  int end;
  int first_step;  // of every tile
  int steps;
};

__device__ __forceinline__ Block block_of(const Task& task) {
  const auto cluster = static_cast<int>(blockIdx.x) / task.split;
  const int clusters = static_cast<int>(gridDim.x) / task.split;
  const int64_t units = task.out / task.unit;
  Block block;
  block.rank = static_cast<int>(blockIdx.x) % task.split;
  block.begin = static_cast<int>(units * cluster / clusters) * task.unit;
  block.end = static_cast<int>(units * (cluster + 1) / clusters) * task.unit;
  block.first_step = task.steps * block.rank / task.split;
  block.steps = task.steps * (block.rank + 1) / task.split - block.first_step;
  return block;
}

// One thread.
template <int kColumns, WeightType kWeight>
__device__ __forceinline__ void produce(const Task& task, const CUtensorMap* weights,
                                        const CUtensorMap* x, const Ring& ring, char* stages,
                                        const Block& block) {
  constexpr int kXPanels = kWeight == WeightType::kFp8 ? 2 : 1;
  constexpr uint32_t kXBytes = kColumns * kBatchPanelBytes;
  const uint64_t policy = evict_first_policy();
  const uint32_t bytes = static_cast<uint32_t>(task.tile_rows) * kBatchPanelBytes +
                         static_cast<uint32_t>(kXPanels) * kXBytes;
  const auto load_weights = [&](int tile, int step, int stage) {
    barrier_expect(&ring.full[stage], bytes);
    tma_load_3d(stages + static_cast<uint32_t>(stage) * ring.stage_bytes, weights,
                &ring.full[stage], (block.first_step + step) * 64,
                block.begin + tile * task.tile_rows, 0, policy);
  };
  const auto load_x = [&](int step, int stage) {
#pragma unroll
    for (int p = 0; p < kXPanels; ++p)
      tma_load_3d(stages + static_cast<uint32_t>(stage) * ring.stage_bytes + ring.x_at +
                      static_cast<uint32_t>(p) * kXBytes,
                  x, &ring.full[stage], ((block.first_step + step) * kXPanels + p) * 64, 0, 0);
  };
  const int all = block.steps * task.tiles;
  const int first = min(all, task.stages);
  for (int i = 0; i < first; ++i) load_weights(i / block.steps, i % block.steps, i);
  wait_for_previous();
  for (int i = 0; i < first; ++i) load_x(i % block.steps, i);
  int stage = 0;
  uint32_t parity = 0;
  for (int i = first; i < all; ++i) {
    barrier_wait(&ring.empty[stage], parity);
    load_weights(i / block.steps, i % block.steps, stage);
    load_x(i % block.steps, stage);
    if (++stage == task.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// A warpgroup's part in adding up: of `members` with the same outputs it is number `me` and owns
// every members-th quad.
struct Member {
  int me;
  int members;
  int sharers;  // members of a block
  int index;    // of the warpgroup in its block: its place in memory
  int groups;
};

template <int kColumns>
__device__ __forceinline__ bool owns(const Member& m, int quad) {
  return m.members == 1 || quad % m.members == m.me;
}

// Sends each other member its quads. `sums` is shared memory, `arrived` the barriers of the
// block's warpgroups.
template <int kColumns>
__device__ __forceinline__ void send_sums(const float (&sums)[kColumns / 2], const Member& m,
                                          uint32_t sums_at, uint32_t arrived_at, int t) {
  const auto quads = static_cast<int>(batch_quads(kColumns, static_cast<uint32_t>(m.members)));
  const int group = m.index % m.groups;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const int to = j % m.members;
    if (to == m.me) continue;
    const int index = to % m.sharers * m.groups + group;
    const int from = m.me < to ? m.me : m.me - 1;
    const int slot = (index * (m.members - 1) + from) * quads + j / m.members;
    store_at(address_at(sums_at + static_cast<uint32_t>(slot * kGroupThreads + t) * 16,
                        static_cast<uint32_t>(to / m.sharers)),
             {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]});
  }
  __syncwarp();
  if (t % 32 != 0) return;
  for (int to = 0; to < m.members; ++to)
    if (to != m.me)
      barrier_arrive_at(
          address_at(arrived_at + static_cast<uint32_t>(to % m.sharers * m.groups + group) * 8,
                     static_cast<uint32_t>(to / m.sharers)));
}

template <int kColumns>
__device__ __forceinline__ void add_sums(float (&sums)[kColumns / 2], const Member& m,
                                         const float4* buffer, int t) {
  const auto quads = static_cast<int>(batch_quads(kColumns, static_cast<uint32_t>(m.members)));
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (!owns<kColumns>(m, j)) continue;
    float4 sum{};
    for (int from = 0; from < m.members; ++from) {
      float4 v{sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
      if (from != m.me) {
        const int place = from < m.me ? from : from - 1;
        v = buffer[((m.index * (m.members - 1) + place) * quads + j / m.members) * kGroupThreads +
                   t];
      }
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    sums[4 * j] = sum.x;
    sums[4 * j + 1] = sum.y;
    sums[4 * j + 2] = sum.z;
    sums[4 * j + 3] = sum.w;
  }
}

// Where a thread's sums belong: outputs `output` and 8 further on, if below `end`, of rows
// `row` + 8 * quad and the next.
struct Corner {
  int output;
  int end;
  int row;
};

// Calls body(v, row, output) for what a thread owns and what exists.
template <int kColumns, typename Body>
__device__ __forceinline__ void each_sum(float (&sums)[kColumns / 2], const Task& task,
                                         const Member& m, const Corner& corner, const Body& body) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (!owns<kColumns>(m, j)) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = corner.row + 8 * j + c;
        const int output = corner.output + 8 * i;
        if (row < task.rows && output < corner.end) body(4 * j + 2 * i + c, i, row, output);
      }
  }
}

template <int kColumns>
__device__ __forceinline__ void store_gated(const float (&sums)[kColumns / 2], const Task& task,
                                            const Member& m, const Corner& corner, int t) {
  auto* out = static_cast<__nv_bfloat16*>(task.result);
  const bool is_gate = t / 4 % 2 == 0;  // its neighbour four lanes on has the ups
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (!owns<kColumns>(m, j)) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = sums[4 * j + 2 * i];
      const float second = sums[4 * j + 2 * i + 1];
      const float got = __shfl_xor_sync(0xffffffffU, is_gate ? second : first, 4);
      const float gate = is_gate ? first : got;
      const float up = is_gate ? got : second;
      const int row = corner.row + 8 * j + (is_gate ? 0 : 1);
      const int output = corner.output + 8 * i;
      if (row < task.rows && output < corner.end)
        out[int64_t{row} * (task.out / 2) + output / 2] = __float2bfloat16_rn(silu(gate) * up);
    }
  }
}

// What results of a tile need besides the sums, on its way while members send each other theirs.
template <int kColumns>
struct Extras {
  float before[kColumns / 2];
  float scale[2];
  float bias[2];
};

template <int kColumns, WeightType kWeight>
__device__ __forceinline__ void load_extras(Extras<kColumns>& extras, float (&sums)[kColumns / 2],
                                            const Task& task, const Member& m,
                                            const Corner& corner) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int output = corner.output + 8 * i;
    const bool real = output < corner.end;
    extras.scale[i] = kWeight == WeightType::kFp8 && real ? task.scales[output] : 1.0F;
    extras.bias[i] = task.bias != nullptr && real ? __bfloat162float(task.bias[output]) : 0.0F;
  }
#pragma unroll
  for (float& v : extras.before) v = 0;
  if (task.epilogue == SmallEpilogue::kAdd)
    each_sum<kColumns>(sums, task, m, corner, [&](int k, int, int row, int output) {
      extras.before[k] = static_cast<const float*>(task.result)[int64_t{row} * task.out + output];
    });
}

template <int kColumns, WeightType kWeight>
__device__ __forceinline__ void finish(float (&sums)[kColumns / 2], const Extras<kColumns>& extras,
                                       const Task& task, const Member& m, const Corner& corner,
                                       int t) {
  each_sum<kColumns>(sums, task, m, corner, [&](int k, int i, int, int) {
    float v = sums[k];
    if constexpr (kWeight == WeightType::kFp8) v = __fmul_rn(v, extras.scale[i]);
    sums[k] = __fadd_rn(v, extras.bias[i]);
  });
  if (task.epilogue == SmallEpilogue::kSiluMul) {
    store_gated<kColumns>(sums, task, m, corner, t);
    return;
  }
  const auto at = [&](int row, int output) { return int64_t{row} * task.out + output; };
  if (task.epilogue == SmallEpilogue::kStore) {
    auto* out = static_cast<__nv_bfloat16*>(task.result);
    each_sum<kColumns>(sums, task, m, corner, [&](int k, int, int row, int output) {
      out[at(row, output)] = __float2bfloat16_rn(sums[k]);
    });
    return;
  }
  auto* out = static_cast<float*>(task.result);
  const bool adds = task.epilogue == SmallEpilogue::kAdd;
  each_sum<kColumns>(sums, task, m, corner, [&](int k, int, int row, int output) {
    out[at(row, output)] = adds ? __fadd_rn(extras.before[k], sums[k]) : sums[k];
  });
}

struct Memory {
  uint64_t* arrived;  // [2][warpgroups]
  char* sums;
};

template <int kColumns, int kGroups, int kSharers, WeightType kWeight>
__device__ __forceinline__ void consume(const Task& task, const Ring& ring, const Memory& memory,
                                        const Block& block) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int t = thread % kGroupThreads;
  Member m;
  m.index = thread / kGroupThreads;
  m.groups = kGroups;
  m.sharers = kSharers;
  m.members = task.split * kSharers;
  m.me = block.rank * kSharers + m.index / kGroups;
  const int group = m.index % kGroups;
  const auto rows_at = static_cast<uint32_t>(group * kGroupOutputs) * kBatchPanelBytes;
  const auto buffer_bytes = batch_sums_bytes(kColumns, static_cast<uint32_t>(m.members),
                                             static_cast<uint32_t>(kGroups * kSharers));
  for (int tile = 0; tile < task.tiles; ++tile) {
    const int step = tile * block.steps;
    const Turns turns(ring, step + m.index / kGroups, step + block.steps, kSharers);
    float sums[kColumns / 2];
#pragma unroll
    for (float& s : sums) s = 0;
    if constexpr (kWeight == WeightType::kFp8)
      multiply_batch_fp8<kColumns>(sums, ring, turns, rows_at, t);
    else
      multiply_batch_bf16<kColumns>(sums, ring, turns, rows_at, t % 32);
    const int from = block.begin + tile * task.tile_rows;
    const Corner corner{from + group * kGroupOutputs + t / 32 * 16 + t % 32 / 4,
                        min(from + task.tile_rows, block.end), t % 4 * 2};
    // A member is at most one tile ahead of the others: two sets of barriers and, where there are
    // several tiles, two buffers are enough.
    const int set = tile % 2;
    char* buffer = memory.sums + (task.buffers == 2 ? set : 0) * static_cast<int>(buffer_bytes);
    uint64_t* arrived = memory.arrived + set * kGroups * kSharers;
    if (m.members > 1)
      send_sums<kColumns>(sums, m, shared_address(buffer), shared_address(arrived), t);
    Extras<kColumns> extras;
    load_extras<kColumns, kWeight>(extras, sums, task, m, corner);
    if (m.members > 1) {
      barrier_wait_cluster(arrived + m.index, static_cast<uint32_t>(tile / 2 % 2));
      add_sums<kColumns>(sums, m, reinterpret_cast<const float4*>(buffer), t);
    }
    finish<kColumns, kWeight>(sums, extras, task, m, corner, t);
  }
}

template <int kColumns, int kGroups, int kSharers, WeightType kWeight>
__global__ void __launch_bounds__(kGroups* kSharers* kGroupThreads + 32, 1)
    linear_batch_kernel(const __grid_constant__ CUtensorMap weights,
                        const __grid_constant__ CUtensorMap x, const Task task) {
  constexpr int kWarpgroups = kGroups * kSharers;
  constexpr int kConsumers = kWarpgroups * kGroupThreads;
  static_assert(kWarpgroups <= 4);
  extern __shared__ char shared_raw[];
  constexpr uint32_t kAlign = kBatchHeaderBytes;
  char* shared = shared_raw + (kAlign - shared_address(shared_raw) % kAlign) % kAlign;
  const Block block = block_of(task);
  const int members = task.split * kSharers;
  Memory memory;
  memory.arrived = reinterpret_cast<uint64_t*>(shared + kBatchArrivedAt);
  memory.sums = shared + kBatchHeaderBytes;
  char* stages =
      memory.sums + static_cast<uint32_t>(task.buffers) *
                        batch_sums_bytes(kColumns, static_cast<uint32_t>(members), kWarpgroups);
  Ring ring;
  ring.full = reinterpret_cast<uint64_t*>(shared);
  ring.empty = ring.full + kBatchStages;
  ring.stages_at = shared_address(stages);
  ring.x_at = batch_weight_bytes(static_cast<uint32_t>(task.tile_rows));
  ring.stage_bytes = batch_stage_bytes(static_cast<uint32_t>(task.tile_rows), kColumns,
                                       kWeight == WeightType::kFp8);
  ring.stages = task.stages;
  const auto t = static_cast<int>(threadIdx.x);
  allow_next();
  if (t == kConsumers) {
    tma_prefetch(&weights);
    tma_prefetch(&x);
    for (int s = 0; s < task.stages; ++s) {
      barrier_init(&ring.full[s], 1);
      barrier_init(&ring.empty[s], kGroups * kGroupThreads / 32);
    }
    for (int i = 0; i < 2 * kWarpgroups; ++i)
      barrier_init(&memory.arrived[i],
                   static_cast<uint32_t>(max(members - 1, 1) * kGroupThreads / 32));
    barrier_init_fence();
  }
  __syncwarp();
  // Barriers must be there before others of the cluster arrive at them.
  if (task.split > 1)
    cluster_sync();
  else
    __syncthreads();
  if (t >= kConsumers) {
    if (t == kConsumers) produce<kColumns, kWeight>(task, &weights, &x, ring, stages, block);
    return;
  }
  wait_for_previous();
  consume<kColumns, kGroups, kSharers, kWeight>(task, ring, memory, block);
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, Task);

template <int kGroups, int kSharers, WeightType kWeight>
Kernel pick_columns(uint32_t columns) {
  switch (columns) {
    case 8:
      return linear_batch_kernel<8, kGroups, kSharers, kWeight>;
    case 16:
      return linear_batch_kernel<16, kGroups, kSharers, kWeight>;
    case 24:
      return linear_batch_kernel<24, kGroups, kSharers, kWeight>;
    case 32:
      return linear_batch_kernel<32, kGroups, kSharers, kWeight>;
    case 48:
      return linear_batch_kernel<48, kGroups, kSharers, kWeight>;
  }
  return nullptr;
}

template <int kGroups, int kSharers>
Kernel pick_type(const BatchPlan& plan, bool fp8) {
  return fp8 ? pick_columns<kGroups, kSharers, WeightType::kFp8>(plan.columns)
             : pick_columns<kGroups, kSharers, WeightType::kBf16>(plan.columns);
}

Kernel pick(const BatchPlan& plan, bool fp8) {
  if (plan.groups == 1 && plan.sharers == 2) return pick_type<1, 2>(plan, fp8);
  if (plan.groups == 2 && plan.sharers == 1) return pick_type<2, 1>(plan, fp8);
  if (plan.groups == 3 && plan.sharers == 1) return pick_type<3, 1>(plan, fp8);
  return nullptr;
}

// A matrix of rows of `halves` 2-byte elements, by boxes of 128 bytes of `box` rows.
cudaError_t map_rows(const void* data, int64_t halves, int64_t rows, uint32_t box,
                     CUtensorMap& map) {
  TensorMap3d tensor;
  tensor.data = data;
  tensor.size = {static_cast<uint64_t>(halves), static_cast<uint64_t>(rows), 1};
  tensor.stride_1 = static_cast<uint64_t>(halves) * 2;
  tensor.stride_2 = tensor.stride_1 * static_cast<uint64_t>(rows);
  tensor.box = {kBatchPanelBytes / 2, box, 1};
  tensor.swizzle = kBatchPanelBytes;
  return make_tensor_map(tensor, map);
}

Task raw_task(const SmallLinear& task, const BatchPlan& plan) {
  Task raw{};
  raw.scales = task.scales;
  raw.bias = reinterpret_cast<const __nv_bfloat16*>(task.bias);
  raw.result = task.result;
  raw.out = static_cast<int>(task.out);
  raw.rows = static_cast<int>(task.rows);
  raw.unit = static_cast<int>(output_unit(task.epilogue));
  const int64_t inputs = task.fp8 != nullptr ? 128 : 64;
  raw.steps = static_cast<int>((task.in + inputs - 1) / inputs);
  raw.split = static_cast<int>(plan.split);
  raw.tiles = static_cast<int>(plan.tiles);
  raw.tile_rows = static_cast<int>(plan.tile_rows);
  raw.stages = static_cast<int>(plan.stages);
  raw.buffers = static_cast<int>(plan.buffers);
  raw.epilogue = task.epilogue;
  return raw;
}

}  // namespace

cudaError_t prepare_batch_linear() {
  BatchPlan plan;
  for (plan.columns = 8; plan.columns <= kBatchRows; plan.columns += 8)
    for (plan.groups = 1; plan.groups <= 3; ++plan.groups)
      for (plan.sharers = 1; plan.sharers <= 2; ++plan.sharers)
        for (const bool fp8 : {false, true}) {
          const Kernel kernel = pick(plan, fp8);
          if (kernel == nullptr) continue;
          const cudaError_t error =
              cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
          if (error != cudaSuccess) return error;
        }
  return cudaSuccess;
}

cudaError_t linear_batch(const SmallLinear& task, const BatchPlan& plan, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  const bool fp8 = task.fp8 != nullptr;
  const Kernel kernel = pick(plan, fp8);
  // A warpgroup gives a stage back when it has the next.
  const bool known = kernel != nullptr && plan.stages > plan.sharers;
  if (task.rows > kBatchRows || task.in % (fp8 ? 16 : 8) != 0 || !known)
    return cudaErrorInvalidValue;
  const Bf16* x = task.x;
  if (task.norm != nullptr) {
    if (task.scratch == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = rms_norm(
        {task.residual, task.index, task.norm, task.eps, task.rows, task.in, task.scratch}, stream);
    if (error != cudaSuccess) return error;
    x = task.scratch;
  }
  CUtensorMap weights, rows;
  const void* weight = fp8 ? static_cast<const void*>(task.fp8) : task.weight;
  cudaError_t error =
      map_rows(weight, fp8 ? task.in / 2 : task.in, task.out, plan.tile_rows, weights);
  if (error == cudaSuccess) error = map_rows(x, task.in, task.rows, plan.columns, rows);
  if (error != cudaSuccess) return error;
  const unsigned warpgroups = plan.groups * plan.sharers;
  return launch_chained_clusters(kernel, dim3(plan.clusters * plan.split), plan.split,
                                 dim3(warpgroups * kBatchGroupThreads + 32), plan.shared_bytes,
                                 stream, weights, rows, raw_task(task, plan));
}

}  // namespace tandem::cuda
