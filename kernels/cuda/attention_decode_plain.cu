#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kDimsPerLane = kMaxHeadDim / kWarp;

static_assert(uint64_t{kMaxStepRows} * kMaxHeads <= UINT32_MAX);

struct Args {
  DeviceStep step;
  DecodeShape shape;
  LayerPages layer;
  QkvColumns columns;
  const Bf16* qkv;
  Bf16* out;
  float scale_log2;
};

// Online softmax of one query, spread over a warp: lane i owns channels i, i + 32, ...
struct State {
  float max = -INFINITY;
  float sum = 0.0F;
  float acc[kDimsPerLane] = {};
};

// Takes in up to 32 keys: key(token, c) and value(token, c) give one channel; a lane scores one
// key, then every lane adds all values to its channels.
template <typename Key, typename Value>
__device__ void attend(const float* q, float scale_log2, uint32_t head_dim, uint32_t first,
                       uint32_t last, const Key& key, const Value& value, State& state) {
  const uint32_t lane = threadIdx.x % kWarp;
  float score = -INFINITY;
  if (lane >= first && lane < last) {
    score = 0.0F;
    for (uint32_t c = 0; c < head_dim; ++c) score += q[c] * key(lane, c);
    score *= scale_log2;
  }
  const float max = fmaxf(state.max, warp_max(score));
  if (max == -INFINITY) return;
  const float p = exp2f(score - max);
  const float old = exp2f(state.max - max);
  state.max = max;
  state.sum = state.sum * old + warp_sum(p);
#pragma unroll
  for (uint32_t i = 0; i < kDimsPerLane; ++i) state.acc[i] *= old;
  for (uint32_t t = first; t < last; ++t) {
    const float weight = __shfl_sync(kAllLanes, p, static_cast<int>(t));
#pragma unroll
    for (uint32_t i = 0; i < kDimsPerLane; ++i) {
      const uint32_t c = i * kWarp + lane;
      if (c < head_dim) state.acc[i] += weight * value(t, c);
    }
  }
}

template <kv::KvFormat F>
__global__ void __launch_bounds__(kWarps* kWarp) attention_decode_plain_kernel(const Args args) {
  __shared__ float shared[kWarps][kMaxHeadDim];
  allow_next();
  wait_for_previous();
  const uint32_t job = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const uint32_t row = job / args.shape.heads;
  const uint32_t head = job % args.shape.heads;
  const uint32_t lane = threadIdx.x % kWarp;
  if (row >= args.step.rows) return;
  const int32_t sequence = args.step.row_sequence[row];
  if (sequence < 0 || sequence >= static_cast<int32_t>(args.step.sequences)) return;
  const SequenceSlot slot = args.step.slots[sequence];
  const uint32_t position = slot.start + row - slot.first_row;
  const uint32_t head_dim = args.shape.head_dim;
  const uint32_t kv_head = head / args.shape.group();
  float* q = shared[threadIdx.x / kWarp];
  for (uint32_t c = lane; c < head_dim; c += kWarp)
    q[c] = to_float(args.qkv[uint64_t{row} * args.columns.row + head * head_dim + c]);
  __syncwarp();

  const uint32_t window = args.shape.window;
  const uint32_t from = window == 0 || position < window ? 0 : position + 1 - window;
  const uint32_t own = position / kPageTokens;
  State state;
  for (uint32_t page = from / kPageTokens; page <= own; ++page) {
    const uint32_t base = page * kPageTokens;
    const uint32_t first = from > base ? from - base : 0;
    const uint32_t last = min(kPageTokens, position + 1 - base);
    if (F == kv::KvFormat::kInt4 && page == own) {
      const auto exact = [&](uint32_t t) {
        return exact_row(slot, static_cast<uint32_t>(sequence), kv_head, base + t, args.qkv,
                         args.columns, args.layer);
      };
      attend(
          q, args.scale_log2, head_dim, first, last,
          [&](uint32_t t, uint32_t c) { return to_float(exact(t).key[c]); },
          [&](uint32_t t, uint32_t c) { return to_float(exact(t).value[c]); }, state);
      continue;
    }
    const std::byte* keys = args.layer.head(args.step.blocks[slot.first_block + page], kv_head);
    const std::byte* values = keys + args.layer.shape.k_bytes;
    attend(
        q, args.scale_log2, head_dim, first, last,
        [&](uint32_t t, uint32_t c) { return decode_element<key_coding(F)>(keys, head_dim, t, c); },
        [&](uint32_t t, uint32_t c) {
          return decode_element<value_coding(F)>(values, head_dim, t, c);
        },
        state);
  }
  Bf16* out = args.out + (uint64_t{row} * args.shape.heads + head) * head_dim;
#pragma unroll
  for (uint32_t i = 0; i < kDimsPerLane; ++i) {
    const uint32_t c = i * kWarp + lane;
    if (c < head_dim) out[c] = to_bf16(state.acc[i] / state.sum);
  }
}

using Kernel = void (*)(Args);
Kernel kernel_of(kv::KvFormat format) {
  using kv::KvFormat;
  switch (format) {
    case KvFormat::kF32:
      return attention_decode_plain_kernel<KvFormat::kF32>;
    case KvFormat::kBf16:
      return attention_decode_plain_kernel<KvFormat::kBf16>;
    case KvFormat::kInt8:
      return attention_decode_plain_kernel<KvFormat::kInt8>;
    case KvFormat::kK8V4:
      return attention_decode_plain_kernel<KvFormat::kK8V4>;
    case KvFormat::kInt4:
      return attention_decode_plain_kernel<KvFormat::kInt4>;
    case KvFormat::kFp8E4M3:
      return attention_decode_plain_kernel<KvFormat::kFp8E4M3>;
  }
  return nullptr;
}

}  // namespace

cudaError_t attention_decode_plain(const DeviceStep& step, const DeviceKv& kv,
                                   const DecodeAttention& task, cudaStream_t stream) {
  constexpr float kLog2e = 1.44269504F;
  const Args args{step,
                  task.shape,
                  LayerPages(kv, task.layer, task.kept),
                  QkvColumns(task.shape.heads, task.shape.kv_heads, task.shape.head_dim),
                  task.qkv,
                  task.out,
                  task.scale * kLog2e};
  const uint32_t blocks = (step.rows * task.shape.heads + kWarps - 1) / kWarps;
  const Kernel kernel = kernel_of(task.shape.format);
  return launch_chained(kernel, blocks, kWarps * kWarp, 0, stream, args);
}

}  // namespace tandem::cuda
