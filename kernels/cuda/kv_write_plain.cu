#include "kernels/cuda/kv_write.h"

#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/launch.cuh"

// The form of kv_write that takes every even head_dim: a warp a row, which passes through shared
// memory. One grid, two kinds of blocks: the first ones each take one KV head of one page of one
// sequence, the others a few query heads each.
namespace tandem::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * kWarp;

static_assert(uint64_t{kMaxStepRows} * kMaxHeads <= UINT32_MAX);

struct Args {
  DeviceStep step;
  HeadRows rows;
  LayerPages layer;
  uint32_t heads;
  uint32_t first_sequence;
  uint32_t pages_per_sequence;
  uint32_t page_blocks;  // blocks of the first kind
};

// Positions of the step that lie in one page.
struct Span {
  uint32_t begin;
  uint32_t end;
  __device__ bool fills() const { return end % kPageTokens == 0; }
};
__device__ Span span_in_page(const SequenceSlot& slot, uint32_t page) {
  return {max(slot.start, page * kPageTokens),
          min(slot.start + slot.rows, (page + 1) * kPageTokens)};
}

__device__ void rotate_queries(const Args& args, uint32_t block, float* shared) {
  const uint32_t job = block * kWarps + threadIdx.x / kWarp;
  const uint32_t row = job / args.heads;
  if (row >= args.step.rows) return;
  const int32_t sequence = args.step.row_sequence[row];
  if (sequence < static_cast<int32_t>(args.first_sequence) ||
      sequence >= static_cast<int32_t>(args.step.sequences))
    return;
  float* x = shared + threadIdx.x / kWarp * args.rows.columns.head_dim;
  Bf16* q = args.rows.row(row) + job % args.heads * args.rows.columns.head_dim;
  warp_load_row(q, args.rows.columns.head_dim, x);
  args.rows.warp_rotate(x, args.rows.q_norm, static_cast<uint32_t>(args.step.positions[row]));
  warp_store_row(x, args.rows.columns.head_dim, q);
}

// Key of one head at one position, as floats in `x`; the rounded one goes back to the activation.
__device__ void take_key(const Args& args, const SequenceSlot& slot, uint32_t position,
                         uint32_t kv_head, float* x) {
  const QkvColumns& columns = args.rows.columns;
  Bf16* k = args.rows.row(slot.first_row + position - slot.start) + columns.key +
            kv_head * columns.head_dim;
  warp_load_row(k, columns.head_dim, x);
  args.rows.warp_rotate(x, args.rows.k_norm, position);
  warp_store_row(x, columns.head_dim, k);
}
__device__ void take_value(const Args& args, const SequenceSlot& slot, uint32_t position,
                           uint32_t kv_head, float* x) {
  const QkvColumns& columns = args.rows.columns;
  warp_load_row(args.rows.row(slot.first_row + position - slot.start) + columns.value +
                    kv_head * columns.head_dim,
                columns.head_dim, x);
}

// Formats whose rows are encoded one by one: a warp a row.
template <kv::KvFormat F>
__device__ void write_rows(const Args& args, const SequenceSlot& slot, uint32_t page,
                           uint32_t kv_head, float* shared) {
  const uint32_t head_dim = args.rows.columns.head_dim;
  const Span span = span_in_page(slot, page);
  std::byte* keys = args.layer.head(args.step.blocks[slot.first_block + page], kv_head);
  std::byte* values = keys + args.layer.shape.k_bytes;
  float* x = shared + threadIdx.x / kWarp * head_dim;
  for (uint32_t job = threadIdx.x / kWarp; job < 2 * (span.end - span.begin); job += kWarps) {
    const uint32_t position = span.begin + job / 2;
    if (job % 2 == 0) {
      take_key(args, slot, position, kv_head, x);
      warp_encode_row<key_coding(F)>(x, head_dim, position % kPageTokens, keys);
    } else {
      take_value(args, slot, position, kv_head, x);
      warp_encode_row<value_coding(F)>(x, head_dim, position % kPageTokens, values);
    }
    __syncwarp();
  }
}

// int4: the rows of a page, rounded to bf16, in shared memory.
struct Tile {
  float* keys;  // [16][head_dim]
  float* values;
  uint64_t* levels;  // [head_dim]

  __device__ Tile(float* shared, uint32_t head_dim)
      : keys(shared),
        values(shared + kPageTokens * head_dim),
        levels(reinterpret_cast<uint64_t*>(shared + 2 * kPageTokens * head_dim)) {}
};

__device__ void round_row(float* x, uint32_t head_dim) {
  for (uint32_t c = threadIdx.x % kWarp; c < head_dim; c += kWarp)
    x[c] = bf16_value(bf16_bits(x[c]));
  __syncwarp();
}

// Rows of `page`: the step's own, and those that were in the open page before it.
__device__ void load_tile(const Args& args, const SequenceSlot& slot, uint32_t page,
                          uint32_t kv_head, const Tile& tile) {
  const uint32_t head_dim = args.rows.columns.head_dim;
  const Span span = span_in_page(slot, page);
  const uint32_t first = page * kPageTokens;
  const std::byte* tail = args.layer.tail_head(slot.tail, kv_head);
  const uint32_t pairs = (span.begin - first) * head_dim / 2;  // of channels, of the earlier rows
  for (uint32_t i = threadIdx.x; i < 2 * pairs; i += kThreads) {
    const bool key = i < pairs;
    const uint32_t at = key ? i : i - pairs;
    const std::byte* section = tail + (key ? 0 : args.layer.tail_shape.k_bytes);
    const uint32_t two = reinterpret_cast<const uint32_t*>(section)[at];
    float* x = (key ? tile.keys : tile.values) + 2 * at;
    x[0] = __uint_as_float(two << 16);
    x[1] = __uint_as_float(two & 0xffff0000U);
  }
  for (uint32_t job = threadIdx.x / kWarp; job < 2 * (span.end - span.begin); job += kWarps) {
    const uint32_t position = span.begin + job / 2;
    if (job % 2 == 0) {
      float* x = tile.keys + position % kPageTokens * head_dim;
      take_key(args, slot, position, kv_head, x);
      round_row(x, head_dim);
    } else {
      take_value(args, slot, position, kv_head, tile.values + position % kPageTokens * head_dim);
    }
  }
  __syncthreads();
}

__device__ void store_tail_rows(const Args& args, std::byte* head, uint32_t first, uint32_t count,
                                const Tile& tile) {
  const uint32_t head_dim = args.rows.columns.head_dim;
  for (uint32_t job = threadIdx.x / kWarp; job < 2 * count; job += kWarps) {
    const uint32_t at = (first + job / 2) * head_dim;
    std::byte* section = head + (job % 2 == 0 ? 0 : args.layer.tail_shape.k_bytes);
    warp_store_row((job % 2 == 0 ? tile.keys : tile.values) + at, head_dim,
                   reinterpret_cast<Bf16*>(section) + at);
  }
}

__device__ void seal(const Args& args, const SequenceSlot& slot, uint32_t page, uint32_t kv_head,
                     const Tile& tile) {
  const uint32_t head_dim = args.rows.columns.head_dim;
  std::byte* keys = args.layer.head(args.step.blocks[slot.first_block + page], kv_head);
  block_encode_k4_page(tile.keys, head_dim, head_dim, tile.levels, keys);
  for (uint32_t t = threadIdx.x / kWarp; t < kPageTokens; t += kWarps)
    warp_encode_row<Coding::kFourBitRows>(tile.values + t * head_dim, head_dim, t,
                                          keys + args.layer.shape.k_bytes);
}

// One block takes both the page that was open and the one that is open afterwards, for their rows
// share the tail page; pages between them stand alone.
__device__ void write_tail_pages(const Args& args, const SequenceSlot& slot, uint32_t sequence,
                                 uint32_t page, uint32_t kv_head, float* shared) {
  const Tile tile(shared, args.rows.columns.head_dim);
  const uint32_t first = slot.start / kPageTokens;
  const uint32_t last = (slot.start + slot.rows - 1) / kPageTokens;
  const bool open = (slot.start + slot.rows) % kPageTokens != 0;
  if (open && page == last && page != first) return;
  load_tile(args, slot, page, kv_head, tile);
  if (page == first && reopens(slot))
    store_tail_rows(args, args.layer.kept_head(sequence, kv_head), 0, slot.start % kPageTokens,
                    tile);
  const bool fills = span_in_page(slot, page).fills();
  if (fills) seal(args, slot, page, kv_head, tile);
  if (page != first || !open) return;
  if (fills) {
    __syncthreads();
    load_tile(args, slot, last, kv_head, tile);
  }
  const Span span = span_in_page(slot, last);
  store_tail_rows(args, args.layer.tail_head(slot.tail, kv_head), span.begin % kPageTokens,
                  span.end - span.begin, tile);
}

template <kv::KvFormat F>
__global__ void __launch_bounds__(kThreads) kv_write_plain_kernel(const Args args) {
  extern __shared__ float shared[];
  allow_next();
  wait_for_previous();
  if (blockIdx.x >= args.page_blocks)
    return rotate_queries(args, blockIdx.x - args.page_blocks, shared);
  const uint32_t kv_heads = args.layer.shape.kv_heads;
  const uint32_t kv_head = blockIdx.x % kv_heads;
  const uint32_t item = blockIdx.x / kv_heads;
  const uint32_t sequence = args.first_sequence + item / args.pages_per_sequence;
  const SequenceSlot slot = args.step.slots[sequence];
  const uint32_t page = slot.start / kPageTokens + item % args.pages_per_sequence;
  if (slot.rows == 0 || page * kPageTokens >= slot.start + slot.rows) return;
  if constexpr (F == kv::KvFormat::kInt4) {
    write_tail_pages(args, slot, sequence, page, kv_head, shared);
  } else {
    write_rows<F>(args, slot, page, kv_head, shared);
  }
}

using Kernel = void (*)(Args);
Kernel kernel_of(kv::KvFormat format) {
  using kv::KvFormat;
  switch (format) {
    case KvFormat::kF32:
      return kv_write_plain_kernel<KvFormat::kF32>;
    case KvFormat::kBf16:
      return kv_write_plain_kernel<KvFormat::kBf16>;
    case KvFormat::kInt8:
      return kv_write_plain_kernel<KvFormat::kInt8>;
    case KvFormat::kK8V4:
      return kv_write_plain_kernel<KvFormat::kK8V4>;
    case KvFormat::kInt4:
      return kv_write_plain_kernel<KvFormat::kInt4>;
    case KvFormat::kFp8E4M3:
      return kv_write_plain_kernel<KvFormat::kFp8E4M3>;
  }
  return nullptr;
}

size_t shared_bytes(const kv::KvLayout& layout) {
  const size_t row = layout.head_dim * sizeof(float);
  return layout.needs_tail() ? 2 * kPageTokens * row + layout.head_dim * sizeof(uint64_t)
                             : kWarps * row;
}

}  // namespace

cudaError_t kv_write_plain(const DeviceStep& step, const DeviceKv& kv, const KvWrite& task,
                           cudaStream_t stream) {
  const uint32_t head_dim = kv.layout.head_dim;
  if (head_dim == 0 || head_dim % 2 != 0 || head_dim > kMaxHeadDim ||
      task.rope.rotary_dim > head_dim)
    return cudaErrorInvalidValue;
  if (step.rows == 0 || task.first_sequence >= step.sequences) return cudaSuccess;
  // A sequence whose rows fit one page may still begin in the middle of it.
  const uint32_t pages =
      step.max_rows <= 1 ? 1 : (step.max_rows + kPageTokens - 2) / kPageTokens + 1;
  const uint32_t page_blocks = (step.sequences - task.first_sequence) * pages * kv.layout.kv_heads;
  const uint32_t query_blocks = (step.rows * task.heads + kWarps - 1) / kWarps;
  const HeadRows rows{QkvColumns(task.heads, kv.layout.kv_heads, head_dim),
                      task.qkv,
                      task.rope,
                      task.q_norm,
                      task.k_norm,
                      task.norm_eps};
  const Args args{
      step,  rows,       LayerPages(kv, task.layer, task.kept), task.heads, task.first_sequence,
      pages, page_blocks};
  const Kernel kernel = kernel_of(kv.layout.format);
  return launch_chained(kernel, page_blocks + query_blocks, kThreads, shared_bytes(kv.layout),
                        stream, args);
}

}  // namespace tandem::cuda
