#include "kernels/cuda/page_copy.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

// 512 threads with four 16-byte loads each in flight: 32 KiB a block. On two H200 eight such
// blocks reach 343 GB/s of NVLink's 380 with stores; loads wait a round trip, so pulls take more.
constexpr uint32_t kThreads = 512;
constexpr int kUnroll = 4;
static_assert(kThreads * kUnroll * sizeof(uint4) == kPageCopyItem);

// The finalizer of MurmurHash3: one-to-one, so that one changed word always shows. The word's place
// goes in first, so that exchanged words show as well.
__device__ __forceinline__ uint64_t mixed(uint64_t word, uint64_t place) {
  uint64_t h = word + (place + 1) * 0x9e3779b97f4a7c15ull;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  h ^= h >> 33;
  return h;
}

__device__ __forceinline__ uint64_t pair(uint32_t low, uint32_t high) {
  return static_cast<uint64_t>(high) << 32 | low;
}

// Whole 16-byte vectors of [begin, end).
__device__ uint64_t copy_vectors(const std::byte* from, std::byte* to, size_t begin, size_t end) {
  uint64_t sum = 0;
  uint4 value[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const size_t at = begin + (i * kThreads + threadIdx.x) * sizeof(uint4);
    // Read once and written by others: not through L1.
    if (at < end) value[i] = __ldcv(reinterpret_cast<const uint4*>(from + at));
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const size_t at = begin + (i * kThreads + threadIdx.x) * sizeof(uint4);
    if (at >= end) continue;
    if (to != nullptr) __stcs(reinterpret_cast<uint4*>(to + at), value[i]);
    sum += mixed(pair(value[i].x, value[i].y), at / 8);
    sum += mixed(pair(value[i].z, value[i].w), at / 8 + 1);
  }
  return sum;
}

// Rows of odd sizes: words of four bytes, in pairs; a last single word counts as (word, 0).
__device__ uint64_t copy_words(const std::byte* from, std::byte* to, size_t begin, size_t end) {
  uint64_t sum = 0;
  for (size_t at = begin + threadIdx.x * 8; at < end; at += kThreads * 8) {
    const uint32_t low = *reinterpret_cast<const volatile uint32_t*>(from + at);
    const uint32_t high =
        at + 4 < end ? *reinterpret_cast<const volatile uint32_t*>(from + at + 4) : 0;
    if (to != nullptr) {
      *reinterpret_cast<uint32_t*>(to + at) = low;
      if (at + 4 < end) *reinterpret_cast<uint32_t*>(to + at + 4) = high;
    }
    sum += mixed(pair(low, high), at / 8);
  }
  return sum;
}

__global__ __launch_bounds__(kThreads) void page_copy_kernel(const __grid_constant__ PageCopy task,
                                                             uint32_t items, bool vectors) {
  __shared__ uint64_t partial[kThreads / 32];
  for (uint32_t item = blockIdx.x; item < task.count * items; item += gridDim.x) {
    const PageCopy::Piece piece = task.pieces[item / items];
    const size_t begin = (item % items) * kPageCopyItem;
    const size_t end = min(begin + kPageCopyItem, task.bytes);
    uint64_t sum = vectors ? copy_vectors(piece.from, piece.to, begin, end)
                           : copy_words(piece.from, piece.to, begin, end);
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      uint64_t total = 0;
      for (uint64_t p : partial) total += p;
      task.sums[item] = total;
    }
    __syncthreads();
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
