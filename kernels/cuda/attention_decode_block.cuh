#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode_feed.cuh"
#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/attention_decode_shared.cuh"
#include "kernels/cuda/attention_decode_state.cuh"
#include "kernels/cuda/kv_encode.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pipeline.cuh"

// Split-KV decode attention, up to eight columns (heads of a group, row by row) at a time; small
// enough in registers and shared memory that two blocks, or one and a block of linear_small.cu,
// share a multiprocessor: what one waits for, the other hides. A block takes its units one after
// the other. Its walkers go over the pages of a unit (page i belongs to walker i mod kWalkers),
// each with a ring of copies of its own that runs on into the next unit; a helper warp counts
// splits, fetches records and makes the queries of the next unit ready. All warps merge.
//
// Norms, RoPE and the writing of the step's key and value are part of it: the block that has the
// last pages of a head encodes them into shared memory, and from there into the pool and into its
// own copy of the last page. No other block reads that position, and what all others read was
// written by earlier steps, so every page may be on its way before the kernel's turn. Not so where
// slots have several rows (kFewRows): kv_write() has done all that, and nothing is fetched before
// it has ended.
namespace tandem::cuda::decode {

template <kv::KvFormat F, uint32_t kDim, bool kFewRows>
class Block : Feed<BlockConfig<F, kDim, kFewRows>> {
 public:
  using C = BlockConfig<F, kDim, kFewRows>;
  using Base = Feed<C>;
  using Base::args_;
  using Base::at;
  using Base::barriers;
  using Base::begin;
  using Base::begin_feed;
  using Base::columns_of;
  using Base::count;
  using Base::enter_unit;
  using Base::exact_barrier;
  using Base::fills;
  using Base::first_;
  using Base::flags;
  using Base::fresh;
  using Base::head_of;
  using Base::is_walker;
  using Base::lane;
  using Base::load_record;
  using Base::memory_;
  using Base::merge_splits;
  using Base::merge_walkers;
  using Base::mine_;
  using Base::owns_last;
  using Base::record;
  using Base::release;
  using Base::row_of;
  using Base::rows;
  using Base::same_queries;
  using Base::stage;
  using Base::state_stage;
  using Base::states;
  using Base::sums;
  using Base::take;
  using Base::warp;
  using Base::writes;

  __device__ Block(const Args& args, std::byte* memory) : Base(args, memory) {}

  __device__ void run() {
    begin();
    if constexpr (!kFewRows) fetch_first();
    allow_next();
    if (!kFewRows && mine_ > 0) load_angles(record(0));
    wait_for_previous();
    // Not before: where blocks without work ended at once, steps of one sequence took 40 % longer.
    if (mine_ == 0) return;
    if constexpr (kFewRows) fetch_first();
    prepare(0, true, 0, warp(), C::kWalkers + 1);
    __syncthreads();
    uint32_t parity = 0;  // of the unit's query rows
    for (uint32_t k = 0; k < mine_; ++k) {
      const bool next = k + 1 < mine_;
      const bool turns = next && !same_queries(record(k), record(k + 1));
      if (is_walker()) {
        walk(k, parity);
        leave();
      } else {
        if (k > 0) count(k - 1);
        if (k + 2 < mine_) load_record(k + 2);
        if (next) prepare(k + 1, turns, turns ? parity ^ 1 : parity, 0, 1);
      }
      __syncthreads();
      if (k > 0 && flags()[(k - 1) % 2] != 0) merge_splits(record(k - 1));
      merge_walkers(record(k));
      __syncthreads();
      if constexpr (C::kExact && !kFewRows) {
        if (writes(record(k)) && fills(record(k))) {
          seal(record(k));
          __syncthreads();
        }
      }
      if (turns) parity ^= 1;
    }
    if (!is_walker()) count(mine_ - 1);
    __syncthreads();
    if (flags()[(mine_ - 1) % 2] != 0) merge_splits(record(mine_ - 1));
  }

 private:
  __device__ void fetch_first() {
    if (!is_walker() || mine_ == 0) return;
    if constexpr (C::kExact) fetch_exact(record(0));
    begin_feed();
  }

  // ---- queries, and the step's key and value ----

  // Makes the queries (if they are `new_rows`) and the fresh key and value of unit k ready, by
  // warps who = 0 .. of-1.
  __device__ void prepare(uint32_t k, bool new_rows, uint32_t parity, uint32_t who, uint32_t of) {
    const DecodeUnit& unit = record(k);
    const uint32_t own = owns_last(unit) ? 2 : 0;
    const uint32_t jobs = own + (new_rows ? columns_of(unit) : 0);
    if (!kFewRows && k > 0) load_angles(unit);
    float* x = this->template at<float>(C::kScratchAt) + warp() * kDim;
    for (uint32_t job = who; job < jobs; job += of) {
      if (job < own) {
        take_fresh(unit, k, job == 0 ? 1 : 0, x);
      } else if constexpr (kFewRows) {
        const auto* query = reinterpret_cast<const uint4*>(query_of(unit, job));
        auto* to = reinterpret_cast<uint4*>(rows(parity) + job * C::kPitch);
        if (lane() < kDim / 8) to[lane()] = query[lane()];
      } else {
        warp_load_row(query_of(unit, job - own), kDim, x);
        rotate(x, args_.q_norm);
        warp_store_row(x, kDim, rows(parity) + (job - own) * C::kPitch);
      }
      __syncwarp();
    }
  }
  __device__ const Bf16* row_at(uint32_t row) const {
    return args_.qkv + uint64_t{row} * args_.columns.row;
  }
  __device__ const Bf16* query_of(const DecodeUnit& unit, uint32_t column) const {
    return row_at(unit.row + row_of(unit, column)) +
           (unit.kv_head * args_.group + head_of(unit, column)) * kDim;
  }
  // Of the position of a unit's queries, of this lane's channels: weights of the model, so that
  // they may be read before the kernel's turn.
  __device__ void load_angles(const DecodeUnit& unit) {
    const uint32_t half = args_.rope.rotary_dim / 2;
#pragma unroll
    for (uint32_t i = 0; i < kAngles; ++i) {
      const uint32_t at = i * kWarp + lane();
      if (at < half) angles_[i] = args_.rope.cos_sin[uint64_t{unit.start} * half + at];
    }
  }
  __device__ void rotate(float* x, const float* norm) const {
    if (norm != nullptr) warp_normalize(x, kDim, norm, args_.norm_eps, args_.rope);
    const uint32_t half = args_.rope.rotary_dim / 2;
#pragma unroll
    for (uint32_t i = 0; i < kAngles; ++i) {
      const uint32_t at = i * kWarp + lane();
      if (at < half) rotate_pair(x[at], x[at + half], angles_[i]);
    }
    __syncwarp();
  }
  // Encodes it for the page that it belongs to and, by one block, into the pool.
  __device__ void take_fresh(const DecodeUnit& unit, uint32_t k, uint32_t side, float* x) const {
    const QkvColumns& columns = args_.columns;
    warp_load_row(
        row_at(unit.row) + (side == 0 ? columns.key : columns.value) + unit.kv_head * kDim, kDim,
        x);
    if (side == 0) rotate(x, args_.k_norm);
    const uint32_t token = unit.start % kPageTokens;
    const RowPlace place = fresh(k, side);
    if constexpr (C::kExact) {
      warp_encode_row<Coding::kBf16>(x, kDim, place);
      if (!writes(unit) || fills(unit)) return;
      std::byte* tail = args_.layer.tail_head(unit.exact - 1, unit.kv_head) +
                        side * args_.layer.tail_shape.k_bytes;
      warp_encode_row<Coding::kBf16>(x, kDim, token, tail);
    } else {
      std::byte* section = args_.layer.head(
          args_.step.blocks[unit.blocks + unit.start / kPageTokens - unit.first_page],
          unit.kv_head);
      if (side == 0)
        encode_fresh<C::kKey>(x, place, section, token, writes(unit));
      else
        encode_fresh<C::kValue>(x, place, section + args_.layer.shape.k_bytes, token, writes(unit));
    }
  }
  template <Coding kCoding>
  __device__ static void encode_fresh(const float* x, const RowPlace& place, std::byte* section,
                                      uint32_t token, bool writes) {
    warp_encode_row<kCoding>(x, kDim, place);
    __syncwarp();
    if (writes) copy_row<kCoding>(place, section, token);
  }
  // A token's row into a section, by a warp.
  template <Coding kCoding>
  __device__ static void copy_row(const RowPlace& from, std::byte* section, uint32_t token) {
    const RowPlace to = row_place<kCoding>(section, kDim, token);
#pragma unroll 1
    for (uint32_t i = lane(); i < kDim * bits_of(kCoding) / 32; i += kWarp)
      reinterpret_cast<uint32_t*>(to.elements)[i] =
          reinterpret_cast<const uint32_t*>(from.elements)[i];
    if constexpr (kCoding == Coding::kBf16) return;
    constexpr uint32_t kScales = kCoding == Coding::kFourBitRows ? kDim / kv::kV4Group : 1;
    if (lane() >= kScales) return;
    to.scales[lane()] = from.scales[lane()];
    if (kCoding == Coding::kFourBitRows) to.minima[lane()] = from.minima[lane()];
  }

  // ---- walkers ----

  // What a walk over one unit keeps at hand.
  struct Walk {
    Query<typename C::Key, C::kSteps> query;
    Limits seen[kFewRows ? 2 : 1];  // by columns 2j and 2j+1
    uint32_t from;                  // no column sees less than what lies between these
    uint32_t open;                  // position where the page of the first row's own token begins
    uint32_t end;                   // no column sees more
    uint32_t k;
    float scale[2];  // of scores, of columns 2j and 2j+1
    float start[2];
  };

  // The query row of this lane's column, which is g; null beyond the last.
  __device__ const Bf16* own_row(const DecodeUnit& unit, uint32_t parity) const {
    const uint32_t g = lane() / 4;
    return g < columns_of(unit) ? rows(parity) + g * C::kPitch : nullptr;
  }

  __device__ void walk(uint32_t k, uint32_t parity) {
    const DecodeUnit& unit = record(k);
    if constexpr (C::kExact) {
      if (k > 0) fetch_exact(unit);
    }
    enter_unit(k);
    Walk w;
    w.query.load(own_row(unit, parity));
    const uint32_t columns = columns_of(unit);
    w.from = seen_by(unit, columns - 1).from;
    w.open = (unit.start + row_of(unit, 0)) / kPageTokens * kPageTokens;
    w.end = seen_by(unit, columns - 1).end;
#pragma unroll
    for (uint32_t i = 0; i < (kFewRows ? 2 : 1); ++i)
      w.seen[i] = seen_by(unit, min(2 * (lane() % 4) + i, columns - 1));
    w.k = k;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      // What column 2j+i has is with the lanes of that g.
      const auto other = static_cast<int>((2 * (lane() % 4) + i) * 4);
      w.scale[i] = args_.scale_log2 * __shfl_sync(kAllLanes, w.query.factor, other);
      w.start[i] = __shfl_sync(kAllLanes, w.query.start, other);
    }
    state_.clear();
    const uint32_t count = C::count_of(unit, warp());
    uint32_t first = (unit.first_page + warp()) * kPageTokens;
    constexpr uint32_t kStride = C::kWalkers * kPageTokens;
    for (uint32_t i = 0; i < count; ++i, first += kStride) take_page(w, first);
    if constexpr (C::kExact) {
      if (unit.exact != 0 && warp() + 1 == C::kWalkers) take_exact_page(w, parity);
    }
  }

  __device__ Limits seen_by(const DecodeUnit& unit, uint32_t column) const {
    const uint32_t end = unit.start + row_of(unit, column) + 1;
    return {args_.window == 0 || end < args_.window ? 0 : end - args_.window, end};
  }

  __device__ __forceinline__ void take_page(const Walk& w, uint32_t first) {
    // Pages that need nothing but reading are by far the most.
    const bool special = first < w.from || first >= w.open;
    std::byte* page = take();
    if (special) patch<C::kKey>(w, 0, first, page);
    float s[4];
    C::Key::score(page, w.query.fragment, w.start, s);
    scale_scores(w, page, s);
    if (special) mask(s, first, w.seen);
    std::byte* values = page + C::kKeyBytes;
    if constexpr (C::kSides) {
      release(w.k);
      state_.weigh(s);
      values = take();
    }
    if (special) {
      patch<C::kValue>(w, 1, first, values);
      if (first >= w.open) clear_tokens(values, w.end - first);
    }
    add_values(values, s);
    release(w.k);
  }

  // The last page lacks the step's own row.
  template <Coding kCoding>
  __device__ void patch(const Walk& w, uint32_t side, uint32_t first, std::byte* section) const {
    if constexpr (!C::kExact && !kFewRows) {
      if (first < w.open) return;
      copy_row<kCoding>(fresh(w.k, side), section, (w.end - 1) % kPageTokens);
      written();
    }
  }
  // Ordinary writes to a stage come before the copy that fills it again, and are seen by the warp.
  __device__ static void written() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
  }
  // Zeros from token `valid` on: what lies there may be anything, and zero times that is not zero.
  __device__ static void clear_tokens(std::byte* values, uint32_t valid) {
    if constexpr (!C::kExact) {
      constexpr uint32_t kRow = C::Value::kRow;
#pragma unroll 1
      for (uint32_t i = valid * kRow / 4 + lane(); i < kPageTokens * kRow / 4; i += kWarp)
        reinterpret_cast<uint32_t*>(values)[i] = 0;
      if constexpr (C::kValue != Coding::kBf16) {
        constexpr bool kRows = C::kValue == Coding::kFourBitRows;
        constexpr uint32_t kScales = kRows ? kDim / kv::kV4Group : 1;  // of a token
        auto* scales = reinterpret_cast<uint16_t*>(values + kPageTokens * kRow);
#pragma unroll 1
        for (uint32_t i = valid * kScales + lane(); i < kPageTokens * kScales; i += kWarp) {
          scales[i] = 0;
          if (kRows) scales[kPageTokens * kScales + i] = 0;
        }
      }
      written();
    }
  }

  // Scales of tokens g and g+8, where a section has one a token.
  template <Coding kCoding>
  __device__ static __forceinline__ void token_scales(const std::byte* section,
                                                      float (&scales)[2]) {
    scales[0] = scales[1] = 1.0F;
    if constexpr (kCoding == Coding::kInt8 || kCoding == Coding::kE4m3) {
      const auto* from =
          reinterpret_cast<const uint16_t*>(section + kPageTokens * kDim) + lane() / 4;
      scales[0] = half_value(from[0]);
      scales[1] = half_value(from[8]);
    }
  }
  __device__ __forceinline__ void scale_scores(const Walk& w, const std::byte* page,
                                               float (&s)[4]) const {
    float scales[2];
    token_scales<C::kKey>(page, scales);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) s[i] *= w.scale[i % 2] * scales[i / 2];
  }

  __device__ __forceinline__ void add_values(const std::byte* values, float (&s)[4]) {
    float scales[2];
    token_scales<C::kValue>(values, scales);
    if constexpr (C::kValue == Coding::kInt8 || C::kValue == Coding::kE4m3) {
      const float sizes[2] = {scale_log2(scales[0]), scale_log2(scales[1])};
      state_.weigh(s, {s[0] + sizes[0], s[1] + sizes[0], s[2] + sizes[1], s[3] + sizes[1]});
    } else if constexpr (!C::kSides) {
      state_.weigh(s);
    }
    uint32_t weights[2];
    pack_weights<C::Value::kMath>(s, scales, weights);
    C::Value::accumulate(values, weights, state_.acc, state_.base);
  }

  // ---- the open page of formats that keep it exactly ----

  __device__ std::byte* exact_page() const { return memory_ + C::kExactAt; }
  // By the last walker. Rows of earlier steps are all in the tail page.
  __device__ void fetch_exact(const DecodeUnit& unit) {
    if (unit.exact == 0 || warp() + 1 != C::kWalkers) return;
    if constexpr (kFewRows) return gather_exact(unit);
    if (lane() != 0) return;
    barrier_expect(exact_barrier(), C::kExactBytes);
    bulk_load(exact_page(), args_.layer.tail_head(unit.exact - 1, unit.kv_head), C::kExactBytes,
              exact_barrier());
  }

  // Every row of the page from where it is, a row of one side a lane.
  __device__ void gather_exact(const DecodeUnit& unit) {
    constexpr uint32_t kBytes = kDim * 2;
    const SequenceSlot slot = args_.step.slots[unit.slot];
    const uint32_t begin = unit.start / kPageTokens * kPageTokens;
    const uint32_t tokens = unit.start + unit.rows - begin;
    if (lane() == 0) barrier_expect(exact_barrier(), 2 * tokens * kBytes);
    __syncwarp();
    const uint32_t token = lane() % kPageTokens;
    if (token >= tokens) return;
    const ExactRow row = exact_row(slot, unit.slot, unit.kv_head, begin + token, args_.qkv,
                                   args_.columns, args_.layer);
    std::byte* to = exact_page() + token * kBytes;
    if (lane() < kPageTokens)
      bulk_load(to, row.key, kBytes, exact_barrier());
    else
      bulk_load(to + C::kExactBytes / 2, row.value, kBytes, exact_barrier());
  }

  __device__ void take_exact_page(const Walk& w, uint32_t parity) {
    std::byte* keys = exact_page();
    std::byte* values = keys + C::kExactBytes / 2;
    complete_exact(w, keys, values);
    using ExactKeys = Keys<Coding::kBf16, kDim>;
    Query<ExactKeys, C::kSteps> query;
    query.load(own_row(record(w.k), parity));
    const float none[2] = {0.0F, 0.0F};
    const float one[2] = {1.0F, 1.0F};
    float s[4];
    ExactKeys::score(keys, query.fragment, none, s);
#pragma unroll
    for (float& x : s) x *= args_.scale_log2;
    mask(s, w.open, w.seen);
    state_.weigh(s);
    uint32_t weights[2];
    pack_weights<Math::kBf16>(s, one, weights);
    Values<Coding::kBf16, kDim, C::Value::kRunChannels>::accumulate(values, weights, state_.acc,
                                                                    state_.base);
    __syncwarp();
  }

  // The step's row joins those of the tail page; what lies beyond it may be anything.
  __device__ void complete_exact(const Walk& w, std::byte* keys, std::byte* values) {
    barrier_wait(exact_barrier(), exact_parity_);
    exact_parity_ ^= 1;
    const uint32_t token = w.end - 1 - w.open;
    if constexpr (!kFewRows) {
      copy_row<Coding::kBf16>(fresh(w.k, 0), keys, token);
      copy_row<Coding::kBf16>(fresh(w.k, 1), values, token);
    }
#pragma unroll 1
    for (uint32_t i = (token + 1) * kDim / 2 + lane(); i < kPageTokens * kDim / 2; i += kWarp) {
      reinterpret_cast<uint32_t*>(keys)[i] = 0;
      reinterpret_cast<uint32_t*>(values)[i] = 0;
    }
    written();
  }

  // The page is full: encodes it into the pool, by the whole block: threads take a channel of the
  // keys, or sixteen of one token's values.
  __device__ void seal(const DecodeUnit& unit) const {
    if constexpr (C::kExact && !kFewRows) {
      const auto* keys = reinterpret_cast<const Bf16*>(exact_page());
      const Bf16* values = keys + kPageTokens * kDim;
      std::byte* page = args_.layer.head(
          args_.step.blocks[unit.blocks + unit.start / kPageTokens - unit.first_page],
          unit.kv_head);
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < 2 * kDim; i += C::kThreads) {
        if (i < kDim) {
          encode_k4_channel(keys, kDim, i, kDim, page);
          continue;
        }
        constexpr uint32_t kLanes = kDim / kLaneChannels;
        const uint32_t token = (i - kDim) / kLanes;
        const Place at = straight_place(i % kLanes, kDim);
        float x[kLaneChannels];
        unpack_lane(load_lane(values + token * kDim, at), x);
        encode_v4(x, kDim, at, token, true, page + args_.layer.shape.k_bytes);
      }
    }
  }

  // This walker's state, in the order of the accumulators, which spreads it over the banks.
  __device__ void leave() {
    const uint32_t g = lane() / 4;
    const uint32_t j = lane() % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      float sum = state_.sum[i];
      for (int other = 4; other < 32; other *= 2) sum += __shfl_xor_sync(kAllLanes, sum, other);
      if (g == 0) sums()[warp() * 8 + 2 * j + i] = {state_.max[i], sum};
    }
    if (lane() < C::kStateStages) states(warp())[lane()] = state_stage(lane());
    auto* to = reinterpret_cast<float*>(stage(warp(), state_stage(2 * j / C::kStateColumns)));
#pragma unroll
    for (uint32_t t = 0; t < C::Value::kTiles; ++t)
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i)
        to[C::state_index(2 * j + i % 2, t * 16 + i / 2 * 8 + g)] = state_.total(t, i);
    written();
  }

  static constexpr uint32_t kAngles = (kDim / 2 + kWarp - 1) / kWarp;
  float2 angles_[kAngles];
  uint32_t exact_parity_ = 0;
  State<C> state_;
};

template <kv::KvFormat F, uint32_t kDim, bool kFewRows>
__global__ void __launch_bounds__((BlockConfig<F, kDim, kFewRows>::kThreads), 2)
    attention_decode_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::byte block_memory[];
  Block<F, kDim, kFewRows>(args, block_memory).run();
}

template <kv::KvFormat F, uint32_t kDim, bool kFewRows>
cudaError_t launch_block(const Args& args, uint32_t blocks, cudaStream_t stream) {
  using C = BlockConfig<F, kDim, kFewRows>;
  const PageShape& shape = args.layer.shape;
  if (shape.k_bytes != C::kKeyBytes || shape.head_bytes != C::kHeadBytes)
    return cudaErrorInvalidValue;
  const auto kernel = attention_decode_kernel<F, kDim, kFewRows>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(C::kBytes));
  if (error != cudaSuccess) return error;
  return launch_chained(kernel, blocks, C::kThreads, C::kBytes, stream, args);
}

// The variant of F for a run-time head_dim, one of kDims.
template <kv::KvFormat F, uint32_t... kDims>
cudaError_t launch_head_dim(const Args& args, uint32_t head_dim, uint32_t blocks,
                            cudaStream_t stream) {
  cudaError_t result = cudaErrorInvalidValue;
  const auto launched = [&]<uint32_t kDim>() {
    if (head_dim != kDim) return false;
    result = args.written ? launch_block<F, kDim, true>(args, blocks, stream)
                          : launch_block<F, kDim, false>(args, blocks, stream);
    return true;
  };
  (void)(launched.template operator()<kDims>() || ...);
  return result;
}

}  // namespace tandem::cuda::decode
