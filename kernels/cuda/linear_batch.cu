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
  int each;       // units of a cluster
  int rest;       // clusters that have one more, the first ones
  int steps;      // stages of a tile, of all blocks of a cluster
  int split;      // blocks of a cluster, a power of two
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

// Divides nothing: this is done before the first weights are asked for.
__device__ __forceinline__ Block block_of(const Task& task) {
  const int shift = __ffs(task.split) - 1;
  const int cluster = static_cast<int>(blockIdx.x) >> shift;
  Block block;
  block.rank = static_cast<int>(blockIdx.x) & (task.split - 1);
  block.begin = (cluster * task.each + min(cluster, task.rest)) * task.unit;
  block.end = block.begin + (task.each + (cluster < task.rest ? 1 : 0)) * task.unit;
  block.first_step = (task.steps * block.rank) >> shift;
  block.steps = ((task.steps * (block.rank + 1)) >> shift) - block.first_step;
  return block;
}

// What one thread does: it fills the ring.
template <int kColumns, WeightType kWeight>
class Producer {
 public:
  __device__ Producer(const Task& task, const CUtensorMap* weights, const CUtensorMap* x,
                      const Ring& ring, char* stages, const Block& block)
      : task_(task),
        weights_(weights),
        x_(x),
        ring_(ring),
        stages_(stages),
        block_(block),
        all_(block.steps * task.tiles),
        first_(min(all_, task.stages)),
        policy_(evict_first_policy()) {}

  // Needs the ring's barriers and nothing of what others do.
  __device__ void start() {
    for (int i = 0; i < first_; ++i) load_weights(i);
  }

  __device__ void run() {
    wait_for_previous();
    for (int i = 0, at = 0; i < first_; ++i, at = at + 1 < block_.steps ? at + 1 : 0) load_x(at, i);
    int stage = 0;
    uint32_t parity = 0;
    for (int i = first_; i < all_; ++i) {
      barrier_wait(&ring_.empty[stage], parity);
      const int step = step_;
      load_weights(stage);
      load_x(step, stage);
      if (++stage == task_.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  static constexpr int kXPanels = kWeight == WeightType::kFp8 ? 2 : 1;
  static constexpr uint32_t kXBytes = kColumns * kBatchPanelBytes;

  __device__ char* at(int stage) const {
    return stages_ + static_cast<uint32_t>(stage) * ring_.stage_bytes;
  }

  // Of the next step.
  __device__ void load_weights(int stage) {
    barrier_expect(&ring_.full[stage], static_cast<uint32_t>(task_.tile_rows) * kBatchPanelBytes +
                                           static_cast<uint32_t>(kXPanels) * kXBytes);
    tma_load_3d(at(stage), weights_, &ring_.full[stage], (block_.first_step + step_) * 64,
                block_.begin + tile_ * task_.tile_rows, 0, policy_);
    if (++step_ < block_.steps) return;
    step_ = 0;
    ++tile_;
  }

  __device__ void load_x(int step, int stage) {
#pragma unroll
    for (int p = 0; p < kXPanels; ++p)
      tma_load_3d(at(stage) + ring_.x_at + static_cast<uint32_t>(p) * kXBytes, x_,
                  &ring_.full[stage], ((block_.first_step + step) * kXPanels + p) * 64, 0, 0);
  }

  const Task& task_;
  const CUtensorMap* weights_;
  const CUtensorMap* x_;
  const Ring& ring_;
  char* stages_;
  const Block& block_;
  const int all_;
  const int first_;
  const uint64_t policy_;
  int tile_ = 0;
  int step_ = 0;
};

// A warpgroup's part in adding up: of `members` with the same outputs it is number `me` and owns
// every members-th quad. Members are a power of two.
struct Member {
  int me;
  int members;
  int shift;    // members = 1 << shift
  int sharers;  // members of a block
  int index;    // of the warpgroup in its block: its place in memory
  int groups;
};

// Members of several blocks are never more than two tiles apart by themselves; of more tiles they
// wait for each other.
[[nodiscard]] __device__ __forceinline__ bool is_paced(const Task& task) {
  return task.split > 1 && task.tiles > 2;
}

// Of one block's barrier for the sums of a tile: warps of members of the same block arrive, what
// comes from other blocks is counted in bytes.
template <int kSharers>
[[nodiscard]] __device__ __forceinline__ uint32_t sum_arrivals(const Task& task) {
  const int warps = (task.split * kSharers - 1) * kGroupThreads / 32;
  if (task.split == 1) return static_cast<uint32_t>(max(warps, 1));
  return static_cast<uint32_t>(1 + (is_paced(task) ? warps : 0));
}

// Sends each other member its quads. `sums` is shared memory, `arrived` the barriers of the
// block's warpgroups.
template <int kColumns>
__device__ __forceinline__ void send_sums(const float (&sums)[kColumns / 2], const Member& m,
                                          const Task& task, char* buffer, uint64_t* arrived,
                                          int t) {
  const auto quads = static_cast<int>(batch_quads(kColumns, static_cast<uint32_t>(m.members)));
  const int group = m.index % m.groups;
  const bool apart = task.split > 1;
  const auto index_of = [&](int to) { return to % m.sharers * m.groups + group; };
  const auto barrier_of = [&](int to) {
    return address_at(shared_address(arrived + index_of(to)),
                      static_cast<uint32_t>(to / m.sharers));
  };
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const int to = j & (m.members - 1);
    if (to == m.me) continue;
    const int from = m.me < to ? m.me : m.me - 1;
    const int slot = (index_of(to) * (m.members - 1) + from) * quads + (j >> m.shift);
    float4* here = reinterpret_cast<float4*>(buffer) + slot * kGroupThreads + t;
    const float4 v{sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
    if (apart)
      store_at(address_at(shared_address(here), static_cast<uint32_t>(to / m.sharers)), v,
               barrier_of(to));
    else
      *here = v;
  }
  if (apart && !is_paced(task)) return;
  __syncwarp();
  if (t % 32 != 0) return;
#pragma unroll 1
  for (int to = 0; to < m.members; ++to) {
    if (to == m.me) continue;
    if (apart)
      barrier_arrive_at(barrier_of(to));
    else
      barrier_arrive(arrived + index_of(to));
  }
}

// Bytes that a member gets for a tile from members of which some are in other blocks.
template <int kColumns>
__device__ __forceinline__ uint32_t expected_bytes(const Member& m) {
  const int owned = (kColumns / 8 - m.me + m.members - 1) >> m.shift;  // quads; may be none
  return static_cast<uint32_t>(max(owned, 0) * (m.members - 1) * kGroupThreads * 16);
}

// What follows runs once a tile, and from a cold instruction cache: loops over quads stay loops,
// which costs a few selections and saves thousands of instructions.
template <int kColumns>
__device__ __forceinline__ float4 quad_of(const float (&sums)[kColumns / 2], int j) {
  float4 v{sums[0], sums[1], sums[2], sums[3]};
#pragma unroll
  for (int k = 1; k < kColumns / 8; ++k)
    if (k == j) v = {sums[4 * k], sums[4 * k + 1], sums[4 * k + 2], sums[4 * k + 3]};
  return v;
}

// A quad's sums of all members, in their order. `others`: those of the first other member.
__device__ __forceinline__ float4 add_members(const float4& own, const Member& m,
                                              const float4* others, int stride) {
  float4 sum{};
#pragma unroll 1
  for (int from = 0; from < m.members; ++from) {
    const float4 v = from == m.me ? own : others[(from < m.me ? from : from - 1) * stride];
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  return sum;
}

// Where a thread's sums belong: outputs `output` and 8 further on, if below `end`, of rows
// `row` + 8 * quad and the next. A quad is both rows of the first, then both of the second.
struct Corner {
  int output;
  int end;
  int row;
};

// Calls body(i, element of the quad, row, output) for what exists.
template <typename Body>
__device__ __forceinline__ void each_of(const Task& task, const Corner& corner, int j,
                                        const Body& body) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int row = corner.row + 8 * j + e % 2;
    const int output = corner.output + e / 2 * 8;
    if (row < task.rows && output < corner.end) body(e, row, output);
  }
}

__device__ __forceinline__ float4 load_before(const Task& task, const Corner& corner, int j) {
  float v[4] = {};
  if (task.epilogue == SmallEpilogue::kAdd)
    each_of(task, corner, j, [&](int e, int row, int output) {
      v[e] = static_cast<const float*>(task.result)[int64_t{row} * task.out + output];
    });
  return {v[0], v[1], v[2], v[3]};
}

__device__ __forceinline__ void store_gated(const float (&v)[4], const Task& task,
                                            const Corner& corner, int j, int t) {
  auto* out = static_cast<__nv_bfloat16*>(task.result);
  const bool is_gate = t / 4 % 2 == 0;  // its neighbour four lanes on has the ups
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float got = __shfl_xor_sync(0xffffffffU, is_gate ? v[2 * i + 1] : v[2 * i], 4);
    const float gate = is_gate ? v[2 * i] : got;
    const float up = is_gate ? got : v[2 * i + 1];
    const int row = corner.row + 8 * j + (is_gate ? 0 : 1);
    const int output = corner.output + 8 * i;
    if (row < task.rows && output < corner.end)
      out[int64_t{row} * (task.out / 2) + output / 2] = __float2bfloat16_rn(silu(gate) * up);
  }
}

// Of a thread's two outputs.
struct OutputTerms {
  float scale[2];
  float bias[2];
};

template <WeightType kWeight>
__device__ __forceinline__ OutputTerms load_terms(const Task& task, const Corner& corner) {
  OutputTerms terms;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int output = corner.output + 8 * i;
    const bool real = output < corner.end;
    terms.scale[i] = kWeight == WeightType::kFp8 && real ? task.scales[output] : 1.0F;
    terms.bias[i] = task.bias != nullptr && real ? __bfloat162float(task.bias[output]) : 0.0F;
  }
  return terms;
}

template <WeightType kWeight>
__device__ __forceinline__ void finish(const float4& sum, const float4& before,
                                       const OutputTerms& terms, const Task& task,
                                       const Corner& corner, int j, int t) {
  float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if constexpr (kWeight == WeightType::kFp8) v[e] = __fmul_rn(v[e], terms.scale[e / 2]);
    v[e] = __fadd_rn(v[e], terms.bias[e / 2]);
  }
  if (task.epilogue == SmallEpilogue::kSiluMul) {
    store_gated(v, task, corner, j, t);
    return;
  }
  if (task.epilogue == SmallEpilogue::kStore) {
    auto* out = static_cast<__nv_bfloat16*>(task.result);
    each_of(task, corner, j, [&](int e, int row, int output) {
      out[int64_t{row} * task.out + output] = __float2bfloat16_rn(v[e]);
    });
    return;
  }
  const float adds[4] = {before.x, before.y, before.z, before.w};
  auto* out = static_cast<float*>(task.result);
  each_of(task, corner, j, [&](int e, int row, int output) {
    out[int64_t{row} * task.out + output] =
        task.epilogue == SmallEpilogue::kAdd ? __fadd_rn(adds[e], v[e]) : v[e];
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
  m.shift = __ffs(m.members) - 1;
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
    if (m.members > 1) {
      if (task.split > 1 && t == 0) barrier_expect(arrived + m.index, expected_bytes<kColumns>(m));
      send_sums<kColumns>(sums, m, task, buffer, arrived, t);
    }
    const OutputTerms terms = load_terms<kWeight>(task, corner);
    float4 next = load_before(task, corner, m.me);
    if (m.members > 1) barrier_wait_cluster(arrived + m.index, static_cast<uint32_t>(tile / 2 % 2));
    const auto quads = static_cast<int>(batch_quads(kColumns, static_cast<uint32_t>(m.members)));
    const float4* others = reinterpret_cast<const float4*>(buffer) +
                           m.index * (m.members - 1) * quads * kGroupThreads + t;
#pragma unroll 1
    for (int j = m.me; j < kColumns / 8; j += m.members, others += kGroupThreads) {
      const float4 before = next;
      if (j + m.members < kColumns / 8) next = load_before(task, corner, j + m.members);
      float4 sum = quad_of<kColumns>(sums, j);
      if (m.members > 1) sum = add_members(sum, m, others, quads * kGroupThreads);
      finish<kWeight>(sum, before, terms, task, corner, j, t);
    }
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
  Producer<kColumns, kWeight> producer(task, &weights, &x, ring, stages, block);
  allow_next();
  if (t == kConsumers) {
    tma_prefetch(&weights);
    tma_prefetch(&x);
    for (int s = 0; s < task.stages; ++s) {
      barrier_init(&ring.full[s], 1);
      barrier_init(&ring.empty[s], kGroups * kGroupThreads / 32);
    }
    for (int i = 0; i < 2 * kWarpgroups; ++i)
      barrier_init(&memory.arrived[i], sum_arrivals<kSharers>(task));
    barrier_init_fence();
    producer.start();
  }
  __syncwarp();
  // Barriers must be there before others of the cluster send what they wait for.
  if (task.split > 1)
    cluster_sync_barriers();
  else
    __syncthreads();
  if (t >= kConsumers) {
    if (t == kConsumers) producer.run();
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
  const auto units = static_cast<int>(task.out / output_unit(task.epilogue));
  raw.each = units / static_cast<int>(plan.clusters);
  raw.rest = units % static_cast<int>(plan.clusters);
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
  const bool known =
      kernel != nullptr && plan.stages > plan.sharers && (plan.split & (plan.split - 1)) == 0;
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
