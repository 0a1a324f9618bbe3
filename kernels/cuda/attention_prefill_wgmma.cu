#include <cuda_bf16.h>

#include "common/kv/layout.h"
#include "kernels/cuda/attention_prefill_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

// A persistent block per multiprocessor: one thread feeds tiles of Q, K and V through shared memory
// with TMA, two warpgroups of 64 queries each multiply. A warpgroup starts the scores of the next
// key tile and the values of the current one together and computes a softmax while they run; the
// two take turns, so that the softmax of one meets the products of the other.
namespace tandem::cuda {
namespace {

constexpr uint32_t kPageTokens = kv::kBlockTokens;
constexpr uint32_t kWarpgroup = 128;
constexpr uint32_t kConsumers = 2;
constexpr uint32_t kConsumerRows = 64;
constexpr uint32_t kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr uint32_t kThreads = (1 + kConsumers) * kWarpgroup;
// The producer needs few registers; what it gives back lets the consumers hold scores, weights and
// results at once: 40 + 2 * 232 = 504 of the 512 = 65,536 / 128.
constexpr int kProducerRegs = 40;
constexpr int kConsumerRegs = 232;
constexpr uint32_t kTileSlots = 2;
// Named barriers (0 is __syncthreads): whose turn it is.
constexpr uint32_t kTurnBarrier = 1;

// Shapes of one instantiation. `HeadDim` is the padded one: columns past the real one arrive as
// zeros.
template <uint32_t HeadDim, uint32_t KeyTile, uint32_t Stages, bool Turns = true>
struct Config {
  static constexpr bool kTurns = Turns;
  static constexpr uint32_t kHeadDim = HeadDim;
  static constexpr uint32_t kKeyTile = KeyTile;
  static constexpr uint32_t kStages = Stages;
  // A panel is the columns of one swizzled row.
  static constexpr uint32_t kPanel = HeadDim % 64 == 0 ? 64 : 32;
  static constexpr uint32_t kPanels = HeadDim / kPanel;
  static constexpr uint32_t kSwizzle = kPanel * 2;
  static constexpr uint32_t kQueryPanelBytes = kConsumerRows * kSwizzle;
  static constexpr uint32_t kQueryBytes = kPanels * kQueryPanelBytes;  // of one consumer
  static constexpr uint32_t kKeyPanelBytes = KeyTile * kSwizzle;
  static constexpr uint32_t kKeyBytes = kPanels * kKeyPanelBytes;  // of one stage
  static_assert(kPrefillAlign % KeyTile == 0);
};

struct Barriers {
  uint64_t q_full[kConsumers];
  uint64_t q_free[kConsumers];
  uint64_t tile_full[kTileSlots];
  uint64_t tile_free[kTileSlots];
  uint64_t k_full[4];
  uint64_t k_free[4];
  uint64_t v_full[4];
  uint64_t v_free[4];
  PrefillTile tiles[kTileSlots];  // rows 0: the end
  float sink[kThreads];           // finish_softmax()
};

template <class C>
struct Shared {
  alignas(1024) unsigned char q[kConsumers][C::kQueryBytes];
  alignas(1024) unsigned char k[C::kStages][C::kKeyBytes];
  alignas(1024) unsigned char v[C::kStages][C::kKeyBytes];
  alignas(16) Barriers at;
};

struct Arguments {
  CUtensorMap q;
  CUtensorMap keys;
  CUtensorMap values;
  CUtensorMap exact_keys;
  CUtensorMap exact_values;
  const PrefillTile* tiles;
  uint32_t tile_count;
  uint32_t* counters;
  __nv_bfloat16* out;
  uint64_t out_stride;
  uint32_t head_dim;
  uint32_t group;
  uint32_t window;
  uint32_t exact;  // 0 or 1
  float scale_log2;
};

// The key tiles of a query tile in the order in which both sides take them: those of the exact
// workspace, then the stored ones downward from the diagonal.
struct KeyRange {
  uint32_t exact = 0;  // count
  uint32_t last = 0;   // stored tiles first .. last-1
  uint32_t count = 0;  // in all

  __device__ KeyRange(const Arguments& args, const PrefillTile& tile, uint32_t key_tile) {
    const uint32_t end = tile.position + tile.rows;
    uint32_t stored_end = end;
    if (args.exact != 0) {
      const uint32_t page = tile.position / kPageTokens * kPageTokens;
      exact = (end - page + key_tile - 1) / key_tile;
      stored_end = (end - 1) / kPageTokens * kPageTokens;
    }
    const uint32_t begin =
        args.window == 0 || tile.position < args.window ? 0 : tile.position - args.window + 1;
    const uint32_t first = begin / key_tile;
    last = (stored_end + key_tile - 1) / key_tile;
    count = exact + (last > first ? last - first : 0);
  }
  __device__ bool is_exact(uint32_t i) const { return i < exact; }
  __device__ uint32_t stored(uint32_t i) const { return last - 1 - (i - exact); }
};

// Position in a ring of buffers, each with a full and a free barrier.
template <uint32_t Stages>
struct RingPosition {
  uint32_t stage = 0;
  uint32_t parity = 0;  // of the full barrier; the free one is awaited with parity ^ 1
  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class C>
class Producer {
 public:
  __device__ Producer(const Arguments& args, Shared<C>& shared) : args_(args), shared_(shared) {}

  __device__ void run() {
    uint32_t index = blockIdx.x;
    while (index < args_.tile_count) {
      const PrefillTile tile = args_.tiles[index];
      // Early, so that its latency hides behind this tile's copies.
      index = gridDim.x + atomicAdd(&args_.counters[0], 1);
      announce(tile);
      load(tile);
    }
    announce(PrefillTile{});
    // The last block through leaves the counters as it found them.
    __threadfence();
    if (atomicAdd(&args_.counters[1], 1) == gridDim.x - 1) {
      args_.counters[0] = 0;
      args_.counters[1] = 0;
    }
  }

 private:
  __device__ void announce(const PrefillTile& tile) {
    barrier_wait(&shared_.at.tile_free[slot_.stage], slot_.parity ^ 1);
    shared_.at.tiles[slot_.stage] = tile;
    barrier_arrive(&shared_.at.tile_full[slot_.stage]);
    slot_.advance();
  }

  __device__ void load(const PrefillTile& tile) {
    const KeyRange range(args_, tile, C::kKeyTile);
    load_keys(tile, range, 0);
    for (uint32_t w = 0; w < kConsumers; ++w)
      if (w * kConsumerRows < tile.rows) load_queries(tile, w);
    for (uint32_t i = 1; i < range.count; ++i) {
      load_keys(tile, range, i);
      load_values(tile, range, i - 1);
    }
    load_values(tile, range, range.count - 1);
  }

  __device__ void load_queries(const PrefillTile& tile, uint32_t w) {
    Barriers& at = shared_.at;
    barrier_wait(&at.q_free[w], ((q_parity_ >> w) & 1) ^ 1);
    q_parity_ ^= 1U << w;
    barrier_expect(&at.q_full[w], C::kQueryBytes);
#pragma unroll 1
    for (uint32_t p = 0; p < C::kPanels; ++p)
      tma_load_3d(shared_.q[w] + p * C::kQueryPanelBytes, &args_.q, &at.q_full[w],
                  static_cast<int32_t>(p * C::kPanel), static_cast<int32_t>(tile.head),
                  static_cast<int32_t>(tile.row + w * kConsumerRows));
  }

  __device__ void load_keys(const PrefillTile& tile, const KeyRange& range, uint32_t i) {
    barrier_wait(&shared_.at.k_free[k_.stage], k_.parity ^ 1);
    load_side(tile, range, i, &args_.keys, &args_.exact_keys, &shared_.at.k_full[k_.stage],
              shared_.k[k_.stage]);
    k_.advance();
  }

  __device__ void load_values(const PrefillTile& tile, const KeyRange& range, uint32_t i) {
    barrier_wait(&shared_.at.v_free[v_.stage], v_.parity ^ 1);
    load_side(tile, range, i, &args_.values, &args_.exact_values, &shared_.at.v_full[v_.stage],
              shared_.v[v_.stage]);
    v_.advance();
  }

  __device__ void load_side(const PrefillTile& tile, const KeyRange& range, uint32_t i,
                            const CUtensorMap* stored, const CUtensorMap* exact, uint64_t* full,
                            unsigned char* to) {
    const bool is_exact = range.is_exact(i);
    const uint32_t at = is_exact ? tile.exact_offset + i * C::kKeyTile
                                 : tile.kv_offset + range.stored(i) * C::kKeyTile;
    const uint32_t head = tile.head / args_.group;
    barrier_expect(full, C::kKeyBytes);
#pragma unroll 1
    for (uint32_t p = 0; p < C::kPanels; ++p)
      tma_load_3d(to + p * C::kKeyPanelBytes, is_exact ? exact : stored, full,
                  static_cast<int32_t>(p * C::kPanel), static_cast<int32_t>(at),
                  static_cast<int32_t>(head));
  }

  const Arguments& args_;
  Shared<C>& shared_;
  RingPosition<kTileSlots> slot_;
  RingPosition<C::kStages> k_;
  RingPosition<C::kStages> v_;
  uint32_t q_parity_ = 0;
};

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline void turn_wait(uint32_t whose) {
  asm volatile("bar.sync %0, %1;" ::"r"(kTurnBarrier + whose), "n"(2 * kWarpgroup) : "memory");
}
__device__ inline void turn_pass(uint32_t to) {
  asm volatile("bar.arrive %0, %1;" ::"r"(kTurnBarrier + to), "n"(2 * kWarpgroup) : "memory");
}

template <class C>
class Consumer {
 public:
  __device__ Consumer(const Arguments& args, Shared<C>& shared)
      : args_(args),
        shared_(shared),
        me_(__shfl_sync(~0U, threadIdx.x / kWarpgroup, 0) - 1),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    if (me_ == 1) turn_pass(0);  // the first consumer goes first
    for (;;) {
      barrier_wait(&shared_.at.tile_full[slot_.stage], slot_.parity);
      const PrefillTile tile = shared_.at.tiles[slot_.stage];
      release(&shared_.at.tile_free[slot_.stage]);
      slot_.advance();
      if (tile.rows == 0) break;
      const KeyRange range(args_, tile, C::kKeyTile);
      if (me_ * kConsumerRows < tile.rows)
        attend(tile, range);
      else
        skip(range);
    }
  }

 private:
  static constexpr uint32_t kScores = C::kKeyTile / 2;  // registers
  static constexpr uint32_t kOut = C::kHeadDim / 2;

  // One arrival a warp, once all its lanes are done with the buffer.
  __device__ void release(uint64_t* barrier) {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(barrier);
  }

  __device__ void skip(const KeyRange& range) {
    for (uint32_t i = 0; i < range.count; ++i) {
      barrier_wait(&shared_.at.k_full[k_.stage], k_.parity);
      release(&shared_.at.k_free[k_.stage]);
      k_.advance();
      barrier_wait(&shared_.at.v_full[v_.stage], v_.parity);
      release(&shared_.at.v_free[v_.stage]);
      v_.advance();
    }
  }

  __device__ void attend(const PrefillTile& tile, const KeyRange& range) {
    float scores[kScores];
    uint32_t weights[kScores / 2];
    float out[kOut];
#pragma unroll
    for (uint32_t i = 0; i < kOut; ++i) out[i] = 0.0F;
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0.0F;

    barrier_wait(&shared_.at.q_full[me_], q_parity_);
    barrier_wait(&shared_.at.k_full[k_.stage], k_.parity);
    wgmma_fence();
    start_scores(scores);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(scores);
    release(&shared_.at.k_free[k_.stage]);
    k_.advance();
    if (needs_mask(tile, range, 0)) mask(tile, range, 0, scores);
    float keep[2];
    softmax(scores, keep);
    pack(scores, weights);

    // Masked tiles come first (the diagonal) and last (the far end of a window).
    uint32_t i = 1;
#pragma unroll 1
    for (; i < range.count && needs_mask(tile, range, i); ++i)
      step<true>(tile, range, i, scores, weights, out);
#pragma unroll 1
    for (; i < range.count && !needs_mask(tile, range, i); ++i)
      step<false>(tile, range, i, scores, weights, out);
#pragma unroll 1
    for (; i < range.count; ++i) step<true>(tile, range, i, scores, weights, out);
    release(&shared_.at.q_free[me_]);
    q_parity_ ^= 1;

    barrier_wait(&shared_.at.v_full[v_.stage], v_.parity);
    wgmma_fence();
    start_values(weights, out);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(out);
    release(&shared_.at.v_free[v_.stage]);
    v_.advance();
    write(tile, out);
  }

  // Scores of key tile i beside the results of tile i - 1.
  template <bool Masked>
  __device__ __forceinline__ void step(const PrefillTile& tile, const KeyRange& range, uint32_t i,
                                       float (&scores)[kScores], uint32_t (&weights)[kScores / 2],
                                       float (&out)[kOut]) {
    const bool turns = C::kTurns && tile.rows > kConsumerRows;
    barrier_wait(&shared_.at.k_full[k_.stage], k_.parity);
    if (turns) turn_wait(me_);
    wgmma_fence();
    start_scores(scores);
    wgmma_commit();
    barrier_wait(&shared_.at.v_full[v_.stage], v_.parity);
    wgmma_fence();
    start_values(weights, out);
    wgmma_commit();
    if (turns) turn_pass(me_ ^ 1);
    wgmma_wait<1>();
    wgmma_pin(scores);
    release(&shared_.at.k_free[k_.stage]);
    k_.advance();
    if constexpr (Masked) mask(tile, range, i, scores);
    float keep[2];
    softmax(scores, keep);
    finish_softmax();
    wgmma_wait<0>();
    wgmma_pin(out);
    release(&shared_.at.v_free[v_.stage]);
    v_.advance();
    pack(scores, weights);
#pragma unroll
    for (uint32_t j = 0; j < kOut; ++j) out[j] *= keep[(j / 2) % 2];
  }

  __device__ void start_scores(float (&scores)[kScores]) {
    const uint32_t q = shared_address(shared_.q[me_]);
    const uint32_t k = shared_address(shared_.k[k_.stage]);
#pragma unroll
    for (uint32_t step = 0; step < C::kHeadDim / 16; ++step) {
      const uint32_t panel = step * 16 / C::kPanel;
      const uint32_t column = step * 16 % C::kPanel * 2;
      Wgmma<C::kKeyTile>::ss(
          scores,
          wgmma_descriptor(q + panel * C::kQueryPanelBytes + column, 16, 8 * C::kSwizzle,
                           C::kSwizzle),
          wgmma_descriptor(k + panel * C::kKeyPanelBytes + column, 16, 8 * C::kSwizzle,
                           C::kSwizzle),
          step != 0);
    }
  }

  __device__ void start_values(const uint32_t (&weights)[kScores / 2], float (&out)[kOut]) {
    const uint32_t v = shared_address(shared_.v[v_.stage]);
#pragma unroll
    for (uint32_t step = 0; step < C::kKeyTile / 16; ++step)
      Wgmma<C::kHeadDim>::rs(out, weights + 4 * step,
                             wgmma_descriptor(v + step * 16 * C::kSwizzle, C::kKeyPanelBytes,
                                              8 * C::kSwizzle, C::kSwizzle));
  }

  [[nodiscard]] __device__ int32_t first_row(const PrefillTile& tile) const {
    return static_cast<int32_t>(tile.position + me_ * kConsumerRows);
  }

  // Position of the first key of tile i.
  [[nodiscard]] __device__ static int32_t origin(const PrefillTile& tile, const KeyRange& range,
                                                 uint32_t i) {
    return range.is_exact(i) ? page_of(static_cast<int32_t>(tile.position)) +
                                   static_cast<int32_t>(i * C::kKeyTile)
                             : static_cast<int32_t>(range.stored(i) * C::kKeyTile);
  }

  [[nodiscard]] __device__ static int32_t page_of(int32_t position) {
    return position & ~static_cast<int32_t>(kPageTokens - 1);
  }

  // Is there a key in tile i that one of this warpgroup's rows does not see?
  [[nodiscard]] __device__ bool needs_mask(const PrefillTile& tile, const KeyRange& range,
                                           uint32_t i) const {
    if (range.is_exact(i)) return true;
    const int32_t row = first_row(tile);
    const int32_t key = origin(tile, range, i);
    const int32_t seen_by_all = args_.exact != 0 ? page_of(row) : row + 1;
    const auto window = static_cast<int32_t>(args_.window);
    return key + static_cast<int32_t>(C::kKeyTile) > seen_by_all ||
           (window != 0 && key <= row + static_cast<int32_t>(kConsumerRows) - 1 - window);
  }

  // Sets scores of keys that a row does not see to -inf.
  __device__ void mask(const PrefillTile& tile, const KeyRange& range, uint32_t i,
                       float (&scores)[kScores]) const {
    const auto window = static_cast<int32_t>(args_.window);
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const int32_t row = first_row(tile) + static_cast<int32_t>(warp_ * 16 + lane_ / 4 + 8 * r);
      int32_t low = window == 0 ? 0 : max(0, row - window + 1);
      int32_t high = row + 1;
      if (range.is_exact(i))
        low = max(low, page_of(row));
      else if (args_.exact != 0)
        high = page_of(row);
      const int32_t shift = static_cast<int32_t>(lane_ % 4 * 2) + origin(tile, range, i) - low;
      const auto width = static_cast<uint32_t>(max(0, high - low));
#pragma unroll
      for (uint32_t j = 0; j < C::kKeyTile / 8; ++j)
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c)
          if (static_cast<uint32_t>(shift + static_cast<int32_t>(8 * j + c)) >= width)
            scores[4 * j + 2 * r + c] = -INFINITY;
    }
  }

  // Scores to unnormalized weights; `keep` is what earlier sums and results shrink by.
  __device__ void softmax(float (&scores)[kScores], float (&keep)[2]) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float top = scores[2 * r];
#pragma unroll
      for (uint32_t j = 0; j < C::kKeyTile / 8; ++j)
        top = fmaxf(top, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
      top = fmaxf(top, max_[r]);
      // A row may see nothing of its first tiles.
      const float base = top == -INFINITY ? 0.0F : top * args_.scale_log2;
      keep[r] = exp2_fast(max_[r] * args_.scale_log2 - base);
      max_[r] = top;
      float sum = 0.0F;
#pragma unroll
      for (uint32_t j = 0; j < C::kKeyTile / 8; ++j)
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c) {
          float& score = scores[4 * j + 2 * r + c];
          score = exp2_fast(score * args_.scale_log2 - base);
          sum += score;
        }
      sum_[r] = sum_[r] * keep[r] + sum;
    }
  }

  // ptxas (13.0) moves a wgmma wait ahead of arithmetic that does not need it, but not ahead of a
  // store: this one, which nobody reads, keeps the softmax where it fills the time until the wait.
  __device__ void finish_softmax() {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address(&shared_.at.sink[threadIdx.x])),
                 "f"(sum_[0] + sum_[1])
                 : "memory");
  }

  __device__ static void pack(const float (&scores)[kScores], uint32_t (&weights)[kScores / 2]) {
#pragma unroll
    for (uint32_t j = 0; j < kScores / 2; ++j)
      weights[j] = pack_bf16(scores[2 * j], scores[2 * j + 1]);
  }

  // Four lanes hold a row: they trade until each has 8 neighbouring columns, one 16-byte store.
  __device__ void write(const PrefillTile& tile, const float (&out)[kOut]) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      const float inverse = 1.0F / sum;
      const uint32_t row = me_ * kConsumerRows + warp_ * 16 + lane_ / 4 + 8 * r;
      __nv_bfloat16* to =
          args_.out + (tile.row + row) * args_.out_stride + size_t{tile.head} * args_.head_dim;
#pragma unroll
      for (uint32_t g = 0; g < C::kHeadDim / 32; ++g) {
        uint32_t part[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          const uint32_t at = 4 * (4 * g + j) + 2 * r;
          part[j] = pack_bf16(out[at] * inverse, out[at + 1] * inverse);
        }
        transpose(part);
        const uint32_t column = 32 * g + 8 * (lane_ % 4);
        if (row < tile.rows && column < args_.head_dim)
          *reinterpret_cast<uint4*>(to + column) = make_uint4(part[0], part[1], part[2], part[3]);
      }
    }
  }

  // part[j] of lane i and part[i] of lane j change places, among each four lanes.
  __device__ void transpose(uint32_t (&part)[4]) {
    const bool odd = lane_ % 2 != 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j += 2) {
      const uint32_t got = __shfl_xor_sync(~0U, odd ? part[j] : part[j + 1], 1);
      (odd ? part[j] : part[j + 1]) = got;
    }
    const bool upper = lane_ % 4 >= 2;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t got = __shfl_xor_sync(~0U, upper ? part[j] : part[j + 2], 2);
      (upper ? part[j] : part[j + 2]) = got;
    }
  }

  const Arguments& args_;
  Shared<C>& shared_;
  const uint32_t me_;
  const uint32_t warp_;
  const uint32_t lane_;
  RingPosition<kTileSlots> slot_;
  RingPosition<C::kStages> k_;
  RingPosition<C::kStages> v_;
  uint32_t q_parity_ = 0;
  float max_[2];  // of the scores so far, unscaled; rows lane/4 and lane/4 + 8 of the warp
  float sum_[2];  // of the weights in this lane's columns
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<C>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    Barriers& at = shared.at;
    for (uint32_t i = 0; i < kConsumers; ++i) {
      barrier_init(&at.q_full[i], 1);
      barrier_init(&at.q_free[i], kConsumerWarps / kConsumers);
    }
    for (uint32_t i = 0; i < kTileSlots; ++i) {
      barrier_init(&at.tile_full[i], 1);
      barrier_init(&at.tile_free[i], kConsumerWarps);
    }
    for (uint32_t i = 0; i < C::kStages; ++i) {
      barrier_init(&at.k_full[i], 1);
      barrier_init(&at.k_free[i], kConsumerWarps);
      barrier_init(&at.v_full[i], 1);
      barrier_init(&at.v_free[i], kConsumerWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  allow_next();
  wait_for_previous();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<kProducerRegs>();
    if (threadIdx.x == 0) Producer<C>(args, shared).run();
  } else {
    setmaxnreg_inc<kConsumerRegs>();
    Consumer<C>(args, shared).run();
  }
}

cudaError_t make_maps(const PrefillAttention& args, uint32_t panel, uint32_t key_tile,
                      Arguments& to) {
  const uint64_t row = uint64_t{args.shape.head_dim} * sizeof(__nv_bfloat16);
  const uint32_t swizzle = panel * 2;
  const auto side = [&](const void* data, uint32_t positions, CUtensorMap& map) {
    return make_tensor_map({.data = data,
                            .size = {args.shape.head_dim, positions, args.shape.kv_heads},
                            .stride_1 = row,
                            .stride_2 = row * positions,
                            .box = {panel, key_tile, 1},
                            .swizzle = swizzle},
                           map);
  };
  cudaError_t error = make_tensor_map({.data = args.q,
                                       .size = {args.shape.head_dim, args.shape.heads, args.q_rows},
                                       .stride_1 = row,
                                       .stride_2 = args.q_stride * sizeof(__nv_bfloat16),
                                       .box = {panel, 1, kConsumerRows},
                                       .swizzle = swizzle},
                                      to.q);
  if (error == cudaSuccess) error = side(args.keys, args.positions, to.keys);
  if (error == cudaSuccess) error = side(args.values, args.positions, to.values);
  if (error != cudaSuccess || args.exact_keys == nullptr) return error;
  error = side(args.exact_keys, args.exact_positions, to.exact_keys);
  return error == cudaSuccess ? side(args.exact_values, args.exact_positions, to.exact_values)
                              : error;
}

template <class C>
cudaError_t launch(const PrefillAttention& args, cudaStream_t stream) {
  Arguments to = {};
  cudaError_t error = make_maps(args, C::kPanel, C::kKeyTile, to);
  if (error != cudaSuccess) return error;
  to.tiles = args.tiles;
  to.tile_count = args.tile_count;
  to.counters = args.counters;
  to.out = static_cast<__nv_bfloat16*>(args.out);
  to.out_stride = args.out_stride;
  to.head_dim = args.shape.head_dim;
  to.group = args.shape.heads / args.shape.kv_heads;
  to.window = args.window;
  to.exact = args.exact_keys != nullptr ? 1 : 0;
  to.scale_log2 = args.scale * 1.4426950408889634F;

  int device = 0;
  int processors = 0;
  error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  constexpr int kBytes = sizeof(Shared<C>) + 1024;
  error = cudaFuncSetAttribute(prefill_wgmma_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kBytes);
  if (error != cudaSuccess) return error;
  const uint32_t blocks = min(args.tile_count, static_cast<uint32_t>(processors));
  return launch_chained(prefill_wgmma_kernel<C>, blocks, kThreads, kBytes, stream, to);
}

}  // namespace

bool prefill_wgmma_takes(const PrefillAttention& args) {
  // What a tensor map can address: 16-byte strides.
  return args.shape.head_dim % 8 == 0 && args.shape.head_dim <= 256 && args.q_stride % 8 == 0 &&
         args.out_stride % 8 == 0;
}

cudaError_t attention_prefill_wgmma(const PrefillAttention& args, cudaStream_t stream) {
  // Key tiles: what registers (scores next to results) and shared memory (two stages) allow.
  const uint32_t head_dim = args.shape.head_dim;
  if (head_dim <= 64) return launch<Config<64, 128, 2>>(args, stream);
  if (head_dim <= 96) return launch<Config<96, 128, 2>>(args, stream);
  if (head_dim <= 128) return launch<Config<128, 128, 2>>(args, stream);
  if (head_dim <= 192) return launch<Config<192, 64, 3>>(args, stream);
  return launch<Config<256, 64, 2>>(args, stream);
}

}  // namespace tandem::cuda
