#include "kernels/cuda/page_copy.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

// 1024 threads with four 16-byte loads each under way, and the next item's loads before this one's
// sums are taken: a multiprocessor keeps 64 to 128 KiB in flight. Loads from a peer wait 2 us for
// the round trip, so that is what one multiprocessor can pull in that time (H200: 8 multiprocessors
// would do with stores, which wait for nothing).
constexpr uint32_t kThreads = 1024;
constexpr uint32_t kWarps = kThreads / 32;
constexpr int kUnroll = 4;
static_assert(kThreads * kUnroll * sizeof(uint4) == kPageCopyItem);

// transport::piece_checksum defines what is computed here.
__device__ __forceinline__ uint64_t pair_sum(uint32_t a, uint32_t b) {
  return static_cast<uint64_t>(a) * b + (static_cast<uint64_t>(a) << 32 | b);
}

__device__ __forceinline__ uint64_t vector_sum(uint4 v, uint32_t place) {
  return pair_sum(v.x + (place * 0x9e3779b1u + 0x85ebca77u),
                  v.y + (place * 0xc2b2ae3du + 0x27d4eb2fu)) +
         pair_sum(v.z + (place * 0x165667b1u + 0xd6e8feb8u),
                  v.w + (place * 0x7f4a7c15u + 0x94d049bbu));
}

struct Item {
  const std::byte* from;
  std::byte* to;
  size_t begin;
  size_t end;
};

__device__ __forceinline__ Item item_of(const PageCopy& task, uint32_t items, uint32_t index) {
  const PageCopy::Piece piece = task.pieces[index / items];
  const size_t begin = (index % items) * kPageCopyItem;
  return {piece.from, piece.to, begin, min(begin + kPageCopyItem, task.bytes)};
}

__device__ __forceinline__ void load(const Item& item, uint4 (&value)[kUnroll]) {
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const size_t at = item.begin + (i * kThreads + threadIdx.x) * sizeof(uint4);
    // Read once and written by others: not through L1.
    if (at < item.end) value[i] = __ldcg(reinterpret_cast<const uint4*>(item.from + at));
  }
}

__device__ __forceinline__ uint64_t store(const Item& item, const uint4 (&value)[kUnroll]) {
  uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const size_t at = item.begin + (i * kThreads + threadIdx.x) * sizeof(uint4);
    if (at >= item.end) continue;
    if (item.to != nullptr) __stcs(reinterpret_cast<uint4*>(item.to + at), value[i]);
    sum += vector_sum(value[i], static_cast<uint32_t>(at / sizeof(uint4)));
  }
  return sum;
}

// Rows of odd sizes and addresses: words of four bytes; the last vector is filled up with zeros.
__device__ uint64_t copy_words(const Item& item) {
  uint64_t sum = 0;
  for (size_t at = item.begin + threadIdx.x * 16; at < item.end; at += kThreads * 16) {
    uint32_t words[4] = {};
    for (int w = 0; w < 4 && at + 4 * w < item.end; ++w) {
      words[w] = __ldcg(reinterpret_cast<const unsigned int*>(item.from + at + 4 * w));
      if (item.to != nullptr) *reinterpret_cast<uint32_t*>(item.to + at + 4 * w) = words[w];
    }
    sum += vector_sum({words[0], words[1], words[2], words[3]}, static_cast<uint32_t>(at / 16));
  }
  return sum;
}

// The block's sum, in thread 0. `slots` alternates between calls, so one barrier is enough.
__device__ __forceinline__ uint64_t block_sum(uint64_t sum, uint64_t (&slots)[kWarps]) {
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(~0u, sum, lane);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  sum = slots[threadIdx.x];
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(~0u, sum, lane);
  return sum;
}

__global__ __launch_bounds__(kThreads,
                             1) void page_copy_kernel(const __grid_constant__ PageCopy task,
                                                      uint32_t items, bool vectors) {
  __shared__ uint64_t slots[2][kWarps];
  const uint32_t count = task.count * items;
  uint32_t turn = 0;
  if (!vectors) {
    for (uint32_t index = blockIdx.x; index < count; index += gridDim.x, turn ^= 1) {
      const uint64_t sum = block_sum(copy_words(item_of(task, items, index)), slots[turn]);
      if (threadIdx.x == 0) task.sums[index] = sum;
    }
    return;
  }
  uint32_t index = blockIdx.x;
  if (index >= count) return;
  Item item = item_of(task, items, index);
  uint4 value[kUnroll];
  load(item, value);
  while (true) {
    const uint32_t next = index + gridDim.x;
    Item after{};
    uint4 ahead[kUnroll];
    if (next < count) {
      after = item_of(task, items, next);
      load(after, ahead);
    }
    const uint64_t sum = block_sum(store(item, value), slots[turn]);
    if (threadIdx.x == 0) task.sums[index] = sum;
    if (next >= count) return;
    index = next;
    item = after;
    turn ^= 1;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) value[i] = ahead[i];
  }
}

}  // namespace

cudaError_t page_copy(const PageCopy& task, uint32_t blocks, cudaStream_t stream) {
  const uint32_t items = page_copy_items(task.bytes);
  if (task.count == 0 || items == 0) return cudaSuccess;
  bool vectors = task.bytes % 16 == 0;
  for (uint32_t i = 0; i < task.count; ++i) {
    vectors = vectors && reinterpret_cast<uintptr_t>(task.pieces[i].from) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(task.pieces[i].to) % 16 == 0;
  }
  page_copy_kernel<<<std::min(blocks, task.count * items), kThreads, 0, stream>>>(task, items,
                                                                                  vectors);
  return cudaGetLastError();
}

}  // namespace tandem::cuda
