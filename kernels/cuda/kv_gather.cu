#include "kernels/cuda/kv_gather.h"

#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kVector = 8;  // channels that a thread takes at once where head_dim allows it

struct Args {
  DeviceStep step;
  KvGather task;
  LayerPages layer;
  QkvColumns columns;
};

// Channels c .. c+7 of one token as bf16.
template <Coding C>
__device__ uint4 decode_eight(const std::byte* section, uint32_t head_dim, uint32_t token,
                              uint32_t c) {
  const uint32_t at = token * head_dim + c;
  if constexpr (C == Coding::kBf16) {
    return *reinterpret_cast<const uint4*>(section + 2 * at);
  } else {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float a = decode_element<C>(section, head_dim, token, c + 2 * i);
      const float b = decode_element<C>(section, head_dim, token, c + 2 * i + 1);
      words[i] = uint32_t{bf16_bits(a)} | uint32_t{bf16_bits(b)} << 16;
    }
    return {words[0], words[1], words[2], words[3]};
  }
}

// One side of one head of one page, tokens first .. last-1 of it; zeros for the others of the page.
template <Coding C>
__device__ void gather_section(const std::byte* section, uint32_t head_dim, uint32_t valid,
                               Bf16* to) {
  if (head_dim % kVector == 0) {
    const uint32_t vectors = head_dim / kVector;
    for (uint32_t i = threadIdx.x; i < kPageTokens * vectors; i += kThreads) {
      const uint32_t token = i / vectors;
      uint4 v = {0, 0, 0, 0};
      if (token < valid) v = decode_eight<C>(section, head_dim, token, i % vectors * kVector);
      reinterpret_cast<uint4*>(to)[i] = v;
    }
    return;
  }
  for (uint32_t i = threadIdx.x; i < kPageTokens * head_dim; i += kThreads) {
    const uint32_t token = i / head_dim;
    to[i].bits = token < valid
                     ? bf16_bits(decode_element<C>(section, head_dim, token, i % head_dim))
                     : uint16_t{0};
  }
}

template <kv::KvFormat F>
__global__ void __launch_bounds__(kThreads) kv_gather_kernel(const Args args) {
  allow_next();
  wait_for_previous();
  const SequenceSlot slot = args.step.slots[blockIdx.z];
  const uint32_t page = blockIdx.x;
  const uint32_t kv_head = blockIdx.y;
  const uint32_t context = slot.start + slot.rows;
  const PrefillSequence& sequence = args.task.sequences[blockIdx.z];
  if (sequence.rows == 0 || page * kPageTokens >= prefill_span(context)) return;
  const uint32_t head_dim = args.columns.head_dim;
  const uint64_t at = (uint64_t{kv_head} * args.task.positions + sequence.kv_offset +
                       uint64_t{page} * kPageTokens) *
                      head_dim;
  // A page that stays open is not in the pool: its rows are not for reading as stored.
  const uint32_t stored = F == kv::KvFormat::kInt4 ? context / kPageTokens * kPageTokens : context;
  const uint32_t valid = stored > page * kPageTokens ? stored - page * kPageTokens : 0;
  const std::byte* head =
      valid == 0 ? nullptr : args.layer.head(args.step.blocks[slot.first_block + page], kv_head);
  gather_section<key_coding(F)>(head, head_dim, valid, static_cast<Bf16*>(args.task.keys) + at);
  gather_section<value_coding(F)>(head + args.layer.shape.k_bytes, head_dim, valid,
                                  static_cast<Bf16*>(args.task.values) + at);
}

__global__ void __launch_bounds__(kThreads) kv_gather_exact_kernel(const Args args) {
  allow_next();
  wait_for_previous();
  const SequenceSlot slot = args.step.slots[blockIdx.z];
  const uint32_t kv_head = blockIdx.y;
  const PrefillSequence& sequence = args.task.sequences[blockIdx.z];
  const uint32_t before = slot.start % kPageTokens;
  const uint32_t first = blockIdx.x * kPageTokens;
  if (sequence.rows == 0 || first >= prefill_span(before + slot.rows)) return;
  const uint32_t pairs = args.columns.head_dim / 2;
  const uint64_t at =
      (uint64_t{kv_head} * args.task.exact_positions + sequence.exact_offset + first) * pairs;
  auto* keys = static_cast<uint32_t*>(args.task.exact_keys) + at;
  auto* values = static_cast<uint32_t*>(args.task.exact_values) + at;
  for (uint32_t i = threadIdx.x; i < kPageTokens * pairs; i += kThreads) {
    const uint32_t token = first + i / pairs;
    uint32_t key = 0;
    uint32_t value = 0;
    if (token < before + slot.rows) {
      const ExactRow row = exact_row(slot, blockIdx.z, kv_head, slot.start - before + token,
                                     args.task.qkv, args.columns, args.layer);
      key = reinterpret_cast<const uint32_t*>(row.key)[i % pairs];
      value = reinterpret_cast<const uint32_t*>(row.value)[i % pairs];
    }
    keys[i] = key;
    values[i] = value;
  }
}

using Kernel = void (*)(Args);
Kernel kernel_of(kv::KvFormat format) {
  using kv::KvFormat;
  switch (format) {
    case KvFormat::kF32:
      return kv_gather_kernel<KvFormat::kF32>;
    case KvFormat::kBf16:
      return kv_gather_kernel<KvFormat::kBf16>;
    case KvFormat::kInt8:
      return kv_gather_kernel<KvFormat::kInt8>;
    case KvFormat::kK8V4:
      return kv_gather_kernel<KvFormat::kK8V4>;
    case KvFormat::kInt4:
      return kv_gather_kernel<KvFormat::kInt4>;
    case KvFormat::kFp8E4M3:
      return kv_gather_kernel<KvFormat::kFp8E4M3>;
  }
  return nullptr;
}

}  // namespace

cudaError_t kv_gather(const DeviceStep& step, const DeviceKv& kv, const KvGather& task,
                      cudaStream_t stream) {
  if (step.rows == 0) return cudaSuccess;
  const Args args{step, task, LayerPages(kv, task.layer, task.kept),
                  QkvColumns(task.heads, kv.layout.kv_heads, kv.layout.head_dim)};
  const Kernel kernel = kernel_of(kv.layout.format);
  const auto grid = [&](uint32_t tokens) {
    return dim3(prefill_span(tokens) / kPageTokens, kv.layout.kv_heads, step.sequences);
  };
  const cudaError_t error =
      launch_chained(kernel, grid(step.max_context), kThreads, 0, stream, args);
  if (error != cudaSuccess || !kv.layout.needs_tail()) return error;
  return launch_chained(kv_gather_exact_kernel, grid(step.max_rows + kPageTokens - 1), kThreads, 0,
                        stream, args);
}

}  // namespace tandem::cuda
