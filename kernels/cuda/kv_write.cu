#include "kernels/cuda/kv_write.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/kv_encode.cuh"
#include "kernels/cuda/kv_lanes.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/launch.cuh"

// One grid, blockIdx.y a few rows and blockIdx.x what becomes of them, so that the blocks which run
// side by side read neighbouring memory and mix those that wait for memory with those that compute:
// first the blocks of the queries, then those of keys and values. Rows stay in registers
// (kv_lanes.cuh).
namespace tandem::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMostHeads = 4;  // query heads in flight in a lane

// Rows of a block are those of its warps at least.
static_assert(kMaxStepRows <= uint64_t{kThreads / kWarp} * kMaxGridY);

// How lanes of a warp spread over rows and heads: 2^log_heads heads, the others rows.
struct Spread {
  uint32_t log_heads;
  uint32_t rows;
};

struct Args {
  DeviceStep step;
  HeadRows rows;
  LayerPages layer;
  uint32_t heads;
  uint32_t first_sequence;
  Spread queries{};
  Spread keys{};
  uint32_t query_turns = 0;    // blocks that take all query heads of a group of rows
  uint32_t row_groups = 1;     // of one blockIdx.y; more than one for int4 only
  uint32_t heads_in_turn = 1;  // query heads that a lane takes, <= kMostHeads
  bool apart = false;          // keys and values in blocks of their own
  uint32_t page_rows = 1;      // int4: rows whose pages one block looks after
  uint32_t page_windows = 1;   // int4: such groups of rows of one blockIdx.y
};

__device__ __forceinline__ bool takes(const Args& args, int32_t sequence) {
  return sequence >= static_cast<int32_t>(args.first_sequence) &&
         sequence < static_cast<int32_t>(args.step.sequences);
}

// The row and the head of this lane, and its lane within that row. Padding rows are read like
// others, so that no load waits to know; only `active` ones are written.
struct Task {
  uint32_t row;
  uint32_t head;
  uint32_t lane;
  bool inside;
  bool active;
};
template <uint32_t kLanes>
__device__ __forceinline__ Task task_of(const Args& args, const Spread& spread,
                                        uint32_t row_group) {
  const uint32_t warp = row_group * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const uint32_t group = threadIdx.x % kWarp / kLanes;
  const uint32_t row = warp * spread.rows + (group >> spread.log_heads);
  const bool inside = row < args.step.rows;
  return {row, group & ((1U << spread.log_heads) - 1), threadIdx.x % kLanes, inside,
          inside && takes(args, args.step.row_sequence[row])};
}

template <uint32_t kLanes>
__device__ __forceinline__ void rotate_queries(const Args& args, uint32_t turn_of_heads,
                                               uint32_t row_group) {
  const QkvColumns& columns = args.rows.columns;
  const Task task = task_of<kLanes>(args, args.queries, row_group);
  const Place at = rotary_place(task.lane, columns.head_dim, args.rows.rope.rotary_dim / 2);
  const float* norm = args.rows.q_norm;
  const bool changes = at.live && (at.turns || norm != nullptr);
  const bool reads = task.inside && changes;
  const uint32_t first = (turn_of_heads * args.heads_in_turn << args.queries.log_heads) + task.head;
  Bf16* row = args.rows.row(task.row) + first * columns.head_dim;
  const uint32_t step = columns.head_dim << args.queries.log_heads;
  LaneBits held[kMostHeads];
#pragma unroll
  for (uint32_t i = 0; i < kMostHeads; ++i)
    if (reads && i < args.heads_in_turn && first + (i << args.queries.log_heads) < args.heads)
      held[i] = load_lane(row + i * step, at);
  const Turn turn = load_turn(args.rows.rope,
                              reads ? static_cast<uint32_t>(args.step.positions[task.row]) : 0, at);
#pragma unroll
  for (uint32_t i = 0; i < kMostHeads; ++i) {
    if (i >= args.heads_in_turn) break;
    const bool write = task.active && changes && first + (i << args.queries.log_heads) < args.heads;
    float x[kLaneChannels];
    unpack_lane(held[i], x);
    if (norm != nullptr) normalize_lane<kLanes>(x, norm, args.rows.norm_eps, columns.head_dim, at);
    if (at.turns) turn_lane(x, turn);
    if (write) store_lane(pack_lane(x), row + i * step, at);
  }
}

// Norm and rotation of a key; what the activation gets, if that is something else than before.
template <uint32_t kLanes>
__device__ __forceinline__ void rotate_key(const Args& args, const Place& at, const Turn& turn,
                                           bool write, float (&x)[kLaneChannels], LaneBits& bits,
                                           Bf16* row) {
  const float* norm = args.rows.k_norm;
  if (norm != nullptr)
    normalize_lane<kLanes>(x, norm, args.rows.norm_eps, args.rows.columns.head_dim, at);
  if (at.turns) turn_lane(x, turn);
  if (norm == nullptr && !at.turns) return;
  bits = pack_lane(x);
  if (write) store_lane(bits, row, at);
}

template <Coding C>
__device__ __forceinline__ Place value_place(uint32_t lane, uint32_t head_dim) {
  return C == Coding::kFourBitRows ? straight_place(lane, head_dim) : split_place(lane, head_dim);
}

// Formats whose rows are encoded one by one.
template <kv::KvFormat F, uint32_t kLanes>
__device__ __forceinline__ void write_rows(const Args& args, uint32_t block) {
  const bool has_keys = !args.apart || block % 2 == 0;
  const bool has_values = !args.apart || block % 2 != 0;
  const QkvColumns& columns = args.rows.columns;
  const uint32_t head_dim = columns.head_dim;
  Task task = task_of<kLanes>(args, args.keys, blockIdx.y);
  task.head += (args.apart ? block / 2 : block) << args.keys.log_heads;
  const bool exists = task.head < args.layer.shape.kv_heads;
  const Place key_at = rotary_place(task.lane, head_dim, args.rows.rope.rotary_dim / 2);
  const Place value_at = value_place<value_coding(F)>(task.lane, head_dim);
  const bool reads = task.inside && exists && key_at.live;
  const bool write = task.active && reads;
  Bf16* row = args.rows.row(task.row) + task.head * head_dim;
  LaneBits key;
  LaneBits value;
  uint32_t position = 0;
  std::byte* keys = nullptr;
  Turn turn{};
  if (reads) {
    if (has_keys) key = load_lane(row + columns.key, key_at);
    if (has_values) value = load_lane(row + columns.value, value_at);
    position = static_cast<uint32_t>(args.step.positions[task.row]);
    if (has_keys) turn = load_turn(args.rows.rope, position, key_at);
  }
  if (write) {
    const SequenceSlot& slot = args.step.slots[args.step.row_sequence[task.row]];
    const uint32_t block = args.step.blocks[slot.first_block + position / kPageTokens];
    keys = args.layer.head(block, task.head);
  }
  const uint32_t token = position % kPageTokens;
  float x[kLaneChannels];
  if (has_keys) {
    unpack_lane(key, x);
    rotate_key<kLanes>(args, key_at, turn, write, x, key, row + columns.key);
    encode_lane<key_coding(F), kLanes>(x, key, head_dim, key_at, token, write, keys);
  }
  if (has_values) {
    unpack_lane(value, x);
    encode_lane<value_coding(F), kLanes>(x, value, head_dim, value_at, token, write,
                                         keys + args.layer.shape.k_bytes);
  }
}

// ---- int4: a block takes the 16 tokens of a page, one half of its threads the keys and the other
// the values of one head. The halves share nothing, so that neither waits for the other. ----

// Barrier of one half.
template <uint32_t kSide>
__device__ __forceinline__ void sync_half(bool is_key) {
  if (is_key) {
    asm volatile("bar.sync 1, %0;" ::"n"(kSide) : "memory");
  } else {
    asm volatile("bar.sync 2, %0;" ::"n"(kSide) : "memory");
  }
}

template <uint32_t kLanes>
struct Tile {
  static constexpr uint32_t kChannels = kLanes * kLaneChannels;
  static constexpr uint32_t kStride = kChannels + kRunChannels;
  Bf16 keys[kPageTokens * kStride];

  __device__ void put(uint32_t token, const LaneBits& bits, const Place& at) {
    *reinterpret_cast<uint4*>(keys + token * kStride + at.a) = bits.a;
    *reinterpret_cast<uint4*>(keys + token * kStride + at.b) = bits.b;
  }
};

// The rows of `page` that the step writes, and those that were in the open page before it. A page
// that fills is encoded, another goes to the tail page.
template <uint32_t kLanes>
__device__ __forceinline__ void write_page(const Args& args, const SequenceSlot& slot,
                                           uint32_t sequence, uint32_t page, uint32_t kv_head,
                                           Tile<kLanes>& tile) {
  constexpr uint32_t kSide = kPageTokens * kLanes;  // threads
  const QkvColumns& columns = args.rows.columns;
  const uint32_t head_dim = columns.head_dim;
  const bool is_key = threadIdx.x < kSide;
  const uint32_t token = threadIdx.x % kSide / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  const Place at = is_key ? rotary_place(lane, head_dim, args.rows.rope.rotary_dim / 2)
                          : straight_place(lane, head_dim);
  const uint32_t position = page * kPageTokens + token;
  const uint32_t end = slot.start + slot.rows;
  const bool fills = end >= (page + 1) * kPageTokens;
  const bool earlier = at.live && position < slot.start;
  const bool written = at.live && position >= slot.start && position < end;
  const uint32_t in_tail = token * head_dim;
  const uint32_t side = is_key ? 0 : args.layer.tail_shape.k_bytes;
  auto* tail = reinterpret_cast<Bf16*>(args.layer.tail_head(slot.tail, kv_head) + side) + in_tail;
  Bf16* row = args.rows.row(slot.first_row + position - slot.start) + kv_head * head_dim +
              (is_key ? columns.key : columns.value);
  LaneBits bits;
  Turn turn{};
  if (earlier && fills) {
    bits = load_lane(tail, at);
    if (reopens(slot))
      store_lane(bits,
                 reinterpret_cast<Bf16*>(args.layer.kept_head(sequence, kv_head) + side) + in_tail,
                 at);
  } else if (written) {
    bits = load_lane(row, at);
    if (is_key) turn = load_turn(args.rows.rope, position, at);
  }
  float x[kLaneChannels];
  unpack_lane(bits, x);
  if (is_key) {
    LaneBits rotated = bits;
    rotate_key<kLanes>(args, at, turn, written, x, rotated, row);
    if (written) bits = rotated;
  }
  quiet(bits);
  if (!fills) {
    if (written) store_lane(bits, tail, at);
    return;
  }
  std::byte* keys = args.layer.head(args.step.blocks[slot.first_block + page], kv_head);
  if (is_key) {
    if (at.live) tile.put(token, bits, at);
    sync_half<kSide>(true);
    encode_k4_channel(tile.keys, Tile<kLanes>::kStride, threadIdx.x, head_dim, keys);
  } else {
    encode_v4(x, head_dim, at, token, at.live, keys + args.layer.shape.k_bytes);
  }
  sync_half<kSide>(is_key);  // before the tile or the tail page changes
}

// A page belongs to the first row that the step writes to it. The block of the page that was open
// before the step also takes the one that is open afterwards, for their rows share the tail page.
template <uint32_t kLanes>
__device__ __forceinline__ void write_pages(const Args& args, uint32_t block, Tile<kLanes>& tile) {
  const uint32_t kv_head = block / args.page_windows;
  const uint32_t begin =
      (blockIdx.y * args.page_windows + block % args.page_windows) * args.page_rows;
  const uint32_t own = begin + threadIdx.x % kWarp;
  bool leads = false;
  if (threadIdx.x % kWarp < args.page_rows && own < args.step.rows) {
    const int32_t sequence = args.step.row_sequence[own];
    leads = takes(args, sequence) && (args.step.positions[own] % kPageTokens == 0 ||
                                      args.step.slots[sequence].first_row == own);
  }
  for (uint32_t left = __ballot_sync(kAllLanes, leads); left != 0; left &= left - 1) {
    const uint32_t row = begin + static_cast<uint32_t>(__ffs(static_cast<int>(left))) - 1;
    const auto sequence = static_cast<uint32_t>(args.step.row_sequence[row]);
    const SequenceSlot slot = args.step.slots[sequence];
    const uint32_t page = static_cast<uint32_t>(args.step.positions[row]) / kPageTokens;
    const uint32_t last = (slot.start + slot.rows - 1) / kPageTokens;
    const bool first = page == slot.start / kPageTokens;
    const bool open = (slot.start + slot.rows) % kPageTokens != 0;
    if (open && page == last && !first) continue;
    for (uint32_t p = page;; p = last) {
      write_page<kLanes>(args, slot, sequence, p, kv_head, tile);
      if (!first || !open || p == last) break;
    }
  }
}

template <kv::KvFormat F, uint32_t kLanes>
constexpr uint32_t threads_of() {
  return F == kv::KvFormat::kInt4 ? 2 * kPageTokens * kLanes : kThreads;
}

template <kv::KvFormat F, uint32_t kLanes>
__global__ void __launch_bounds__(threads_of<F, kLanes>(), 768 / threads_of<F, kLanes>())
    kv_write_kernel(const __grid_constant__ Args args) {
  allow_next();
  wait_for_previous();
  const uint32_t query_blocks = args.query_turns * args.row_groups;
  if constexpr (F == kv::KvFormat::kInt4) {
    __shared__ __align__(16) Tile<kLanes> tile;
    if (blockIdx.x >= query_blocks)
      return write_pages<kLanes>(args, blockIdx.x - query_blocks, tile);
    const uint32_t group = blockIdx.x / args.query_turns;
    rotate_queries<kLanes>(args, blockIdx.x - group * args.query_turns,
                           blockIdx.y * args.row_groups + group);
  } else {
    if (blockIdx.x >= query_blocks) return write_rows<F, kLanes>(args, blockIdx.x - query_blocks);
    rotate_queries<kLanes>(args, blockIdx.x, blockIdx.y);
  }
}

// ---- launch ----

constexpr uint32_t over(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

Spread spread_over(uint32_t heads, uint32_t lanes) {
  const uint32_t groups = kWarp / lanes;
  const uint32_t wide = std::min(groups, std::bit_ceil(heads));
  return {static_cast<uint32_t>(std::countr_zero(wide)), groups / wide};
}

template <kv::KvFormat F, uint32_t kLanes>
cudaError_t launch(Args args, bool queries_change, cudaStream_t stream) {
  constexpr uint32_t kBlock = threads_of<F, kLanes>();
  constexpr uint32_t kWarps = kBlock / kWarp;
  const DeviceStep& step = args.step;
  const uint32_t kv_heads = args.layer.shape.kv_heads;
  args.queries = spread_over(args.heads, kLanes);
  args.keys = spread_over(kv_heads, kLanes);
  // Few rows do not fill the card: more blocks, each of which does less.
  const bool few = step.rows <= 64;
  args.heads_in_turn = few ? 1 : kMostHeads;
  args.query_turns =
      queries_change ? over(args.heads, args.heads_in_turn << args.queries.log_heads) : 0;
  args.apart = few;
  uint32_t rows = kWarps * args.queries.rows;
  uint32_t key_blocks = 0;
  if constexpr (F == kv::KvFormat::kInt4) {
    args.row_groups = over(kPageTokens, rows);
    rows *= args.row_groups;
    args.page_rows = few || step.max_rows <= 1 ? 1 : rows;
    args.page_windows = rows / args.page_rows;
    key_blocks = kv_heads * args.page_windows;
  } else {
    rows = std::min(rows, kWarps * args.keys.rows);
    key_blocks = over(kv_heads, 1U << args.keys.log_heads) * (args.apart ? 2 : 1);
  }
  const dim3 grid(args.query_turns * args.row_groups + key_blocks, over(step.rows, rows));
  return launch_chained(kv_write_kernel<F, kLanes>, grid, kBlock, 0, stream, args);
}

template <kv::KvFormat F>
cudaError_t launch(const Args& args, bool queries_change, cudaStream_t stream) {
  switch (lanes_of(args.rows.columns.head_dim)) {
    case 4:
      return launch<F, 4>(args, queries_change, stream);
    case 8:
      return launch<F, 8>(args, queries_change, stream);
  }
  return launch<F, 16>(args, queries_change, stream);
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool in_lanes(const DeviceKv& kv, const KvWrite& task) {
  const uint32_t half = task.rope.rotary_dim / 2;
  return fits_lanes(kv.layout.head_dim, half) && aligned(kv.pages) && aligned(kv.tail) &&
         aligned(task.kept) && aligned(task.qkv) && aligned(task.rope.cos_sin) &&
         aligned(task.q_norm) && aligned(task.k_norm);
}

}  // namespace

cudaError_t kv_write(const DeviceStep& step, const DeviceKv& kv, const KvWrite& task,
                     cudaStream_t stream) {
  const uint32_t head_dim = kv.layout.head_dim;
  if (head_dim == 0 || head_dim % 2 != 0 || head_dim > kMaxHeadDim ||
      task.rope.rotary_dim > head_dim)
    return cudaErrorInvalidValue;
  if (step.rows == 0 || task.first_sequence >= step.sequences) return cudaSuccess;
  if (!in_lanes(kv, task)) return kv_write_plain(step, kv, task, stream);
  const HeadRows rows{QkvColumns(task.heads, kv.layout.kv_heads, head_dim),
                      task.qkv,
                      task.rope,
                      task.q_norm,
                      task.k_norm,
                      task.norm_eps};
  const Args args{step, rows, LayerPages(kv, task.layer, task.kept), task.heads,
                  task.first_sequence};
  const bool change = task.rope.rotary_dim > 0 || task.q_norm != nullptr;
  using kv::KvFormat;
  switch (kv.layout.format) {
    case KvFormat::kF32:
      return launch<KvFormat::kF32>(args, change, stream);
    case KvFormat::kBf16:
      return launch<KvFormat::kBf16>(args, change, stream);
    case KvFormat::kInt8:
      return launch<KvFormat::kInt8>(args, change, stream);
    case KvFormat::kK8V4:
      return launch<KvFormat::kK8V4>(args, change, stream);
    case KvFormat::kInt4:
      return launch<KvFormat::kInt4>(args, change, stream);
    case KvFormat::kFp8E4M3:
      return launch<KvFormat::kFp8E4M3>(args, change, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tandem::cuda
