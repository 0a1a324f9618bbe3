#pragma once

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/attention_decode_ring.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/launch.cuh"

// The warps of decode attention that go over a unit's pages (attention_decode_paged.cuh).
namespace tandem::cuda::paged {

// A running maximum is only raised when a score passes it by this much (log2): weights stay below
// 2^8, and most pages need no rescaling.
constexpr float kSlack = 8.0F;

template <class C, uint32_t kTiles>
struct State {
  float max[kTiles][2];  // of columns 8n + 2j and the next
  float sum[kTiles][2];  // of this lane's tokens
  float acc[kTiles][C::Value::kTiles][4];

  __device__ void clear() {
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n) {
      max[n][0] = max[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0.0F;
#pragma unroll
      for (auto& tile : acc[n])
#pragma unroll
        for (float& x : tile) x = 0.0F;
    }
  }

  // Scores (log2) of some pages become weights, relative to a maximum that all lanes share.
  template <uint32_t kPages>
  __device__ __forceinline__ void weigh(float (&s)[kPages][kTiles][4]) {
    float top[kTiles][2];
    bool beyond = false;
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        top[n][i] = fmaxf(s[0][n][i], s[0][n][i + 2]);
#pragma unroll
        for (uint32_t p = 1; p < kPages; ++p)
          top[n][i] = fmaxf(top[n][i], fmaxf(s[p][n][i], s[p][n][i + 2]));
        beyond |= top[n][i] > max[n][i] + kSlack;
      }
    if (__any_sync(kAllLanes, beyond)) raise(top);
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n) {
      const float base[2] = {max[n][0] == -INFINITY ? 0.0F : max[n][0],
                             max[n][1] == -INFINITY ? 0.0F : max[n][1]};
#pragma unroll
      for (uint32_t p = 0; p < kPages; ++p) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) s[p][n][i] = fast_exp2(s[p][n][i] - base[i % 2]);
        sum[n][0] += s[p][n][0] + s[p][n][2];
        sum[n][1] += s[p][n][1] + s[p][n][3];
      }
    }
  }

  __device__ void raise(float (&top)[kTiles][2]) {
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        for (int lane = 4; lane < 32; lane *= 2)
          top[n][i] = fmaxf(top[n][i], __shfl_xor_sync(kAllLanes, top[n][i], lane));
        const float next = fmaxf(max[n][i], top[n][i]);
        const float factor = next == -INFINITY ? 1.0F : fast_exp2(max[n][i] - next);
        max[n][i] = next;
        sum[n][i] *= factor;
#pragma unroll
        for (auto& tile : acc[n]) {
          tile[i] *= factor;
          tile[i + 2] *= factor;
        }
      }
  }
};

// P^T fragments of one page: weights of tokens g and g+8, times what the format wants.
template <Math M, uint32_t kTiles>
__device__ __forceinline__ void pack_weights(const float (&s)[kTiles][4], float lower, float upper,
                                             uint32_t (&p)[kTiles][2]) {
#pragma unroll
  for (uint32_t n = 0; n < kTiles; ++n) {
    p[n][0] = transpose8x8(pack<M>(s[n][0] * lower, s[n][1] * lower));
    p[n][1] = transpose8x8(pack<M>(s[n][2] * upper, s[n][3] * upper));
  }
}

template <uint32_t kTiles, typename Limit>
__device__ __forceinline__ void mask(float (&s)[kTiles][4], uint32_t first, const Limit& limit) {
  const uint32_t g = threadIdx.x % kWarp / 4;
  const uint32_t j = threadIdx.x % 4;
#pragma unroll
  for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const Limits seen = limit(8 * n + 2 * j + i % 2);
      const uint32_t position = first + g + i / 2 * 8;
      if (position < seen.from || position >= seen.end) s[n][i] = -INFINITY;
    }
}

template <kv::KvFormat F, uint32_t kDim, uint32_t kTiles>
class Walker : Shared<Config<F, kDim, kTiles>> {
 public:
  using C = Config<F, kDim, kTiles>;
  using Base = Shared<C>;
  using Base::args_;
  using Base::end_;
  using Base::first_;
  using Base::lane;
  using Base::unit;
  using Base::warp;

  __device__ Walker(const Base& base) : Base(base), ring_(base) {}

  __device__ void run() {
    ring_.fill(first_, true);
    wait_for_previous();
    allow_next();
    for (uint32_t u = first_; u < end_; ++u) {
      state_.clear();
      ring_.fill(u, false);
      const uint32_t i = u - first_;
      barrier_wait(this->queries_full() + i % 2, i / 2 % 2);
      walk(u);
      leave(i);
    }
  }

 private:
  // What a walk over one unit keeps at hand.
  struct Walk {
    const uint2* queries;
    const Limits* limits;
    uint32_t all_from;  // pages between these need no mask
    uint32_t all_end;
    uint32_t context;
    float scale[kTiles][2];  // of the scores of this lane's columns
  };

  __device__ Walk start(uint32_t u) const {
    const DecodeUnit& current = unit(u);
    const uint32_t parity = (u - first_) % 2;
    Walk w;
    w.queries = this->queries(parity) + lane();
    w.limits = this->limits(parity);
    const uint32_t columns = current.rows * args_.group - current.first_column;
    w.all_from = w.limits[min(C::kColumns, columns) - 1].from;
    w.all_end = w.limits[0].end;
    w.context = current.start + current.rows;
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i)
        w.scale[n][i] = args_.scale_log2 * this->factors(parity)[8 * n + 2 * (lane() % 4) + i];
    return w;
  }

  __device__ void walk(uint32_t u) {
    const DecodeUnit& current = unit(u);
    const Walk w = start(u);
    const uint32_t count = C::count_of(current, warp());
    uint32_t first = (current.first_page + warp()) * kPageTokens;
    constexpr uint32_t kStride = C::kWarps * kPageTokens;
    uint32_t i = 0;
    if constexpr (C::kTogether == 2) {
      for (; i + 2 <= count; i += 2, first += 2 * kStride) take_pages<2>(w, u, first);
    }
    for (; i < count; ++i, first += kStride) take_pages<1>(w, u, first);
    if constexpr (C::kExact) {
      if (current.exact != 0) take_exact_pages(current);
    }
  }

  template <uint32_t kPages>
  __device__ __forceinline__ void take_pages(const Walk& w, uint32_t u, uint32_t first) {
    constexpr uint32_t kStride = C::kWarps * kPageTokens;
    const std::byte* pages[kPages];
#pragma unroll
    for (uint32_t p = 0; p < kPages; ++p) {
      std::byte* page = ring_.take(p);
      const uint32_t at = first + p * kStride;
      if (!C::kExact && at + kPageTokens > w.context) clear_tokens(page, w.context - at);
      pages[p] = page;
    }
    float s[kPages][kTiles][4];
    C::Key::score(
        pages, [&](uint32_t n, uint32_t step) { return w.queries[(n * C::kSteps + step) * kWarp]; },
        s);
#pragma unroll
    for (uint32_t p = 0; p < kPages; ++p) {
      scale_scores(w, pages[p], s[p]);
      const uint32_t at = first + p * kStride;
      if (at < w.all_from || at + kPageTokens > w.all_end)
        mask(s[p], at, [&](uint32_t column) { return w.limits[column]; });
    }
    state_.weigh(s);
#pragma unroll
    for (uint32_t p = 0; p < kPages; ++p) add_values(pages[p] + args_.layer.shape.k_bytes, s[p]);
    ring_.release(kPages);
    ring_.fill(u, false);
  }

  __device__ __forceinline__ void scale_scores(const Walk& w, const std::byte* page,
                                               float (&s)[kTiles][4]) const {
    float token[2] = {1.0F, 1.0F};
    if constexpr (C::kKey == Coding::kInt8 || C::kKey == Coding::kE4m3) {
      const auto* scales =
          reinterpret_cast<const uint16_t*>(page + kPageTokens * kDim) + lane() / 4;
      token[0] = half_value(scales[0]);
      token[1] = half_value(scales[8]);
    }
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) s[n][i] *= w.scale[n][i % 2] * token[i / 2];
  }

  __device__ __forceinline__ void add_values(const std::byte* values, const float (&s)[kTiles][4]) {
    float token[2] = {1.0F, 1.0F};
    if constexpr (C::kValue == Coding::kInt8 || C::kValue == Coding::kE4m3) {
      const auto* scales =
          reinterpret_cast<const uint16_t*>(values + kPageTokens * kDim) + lane() / 4;
      const float lift = C::kValue == Coding::kE4m3 ? kFp8Lift : 1.0F;
      token[0] = half_value(scales[0]) * lift;
      token[1] = half_value(scales[8]) * lift;
    }
    uint32_t weights[kTiles][2];
    pack_weights<C::Value::kMath>(s, token[0], token[1], weights);
    C::Value::accumulate(values, weights, state_.acc);
  }

  // What lies beyond the context may be anything, and zero times that is not zero.
  __device__ void clear_tokens(std::byte* page, uint32_t valid) const {
    std::byte* values = page + args_.layer.shape.k_bytes;
    constexpr uint32_t kRow = C::Value::kRow;
    for (uint32_t i = valid * kRow / 4 + lane(); i < kPageTokens * kRow / 4; i += kWarp)
      reinterpret_cast<uint32_t*>(values)[i] = 0;
    if constexpr (C::kValue != Coding::kBf16) {
      constexpr uint32_t kScales =
          C::kValue == Coding::kFourBitRows ? kv::v4_groups(kDim) : 1;  // of a token
      auto* scales = reinterpret_cast<uint16_t*>(values + kPageTokens * kRow);
      for (uint32_t i = valid * kScales + lane(); i < kPageTokens * kScales; i += kWarp) {
        scales[i] = 0;
        if (C::kValue == Coding::kFourBitRows) scales[kPageTokens * kScales + i] = 0;
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
  }

  // The open page or pages of the sequence as their own queries see them, one a walker.
  __device__ void take_exact_pages(const DecodeUnit& current) {
    const uint32_t place = C::kWarps - 1 - warp();
    const uint32_t page = current.start / kPageTokens + place;
    if (place > 1 || page * kPageTokens >= current.start + current.rows) return;
    constexpr uint32_t kSection = kPageTokens * kDim * 2;
    std::byte* keys = this->template at<std::byte>(C::kExactAt) + place * 2 * kSection;
    load_exact_page(current, page, keys, keys + kSection);
    using ExactKeys = Keys<Coding::kBf16, kDim>;
    float s[1][kTiles][4];
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n) {
      uint2 q[C::kSteps];
      float factor;
      this->template load_query<ExactKeys>(current, n, q, factor);
      const std::byte* const pages[1] = {keys};
      float one[1][1][4];
      ExactKeys::score(
          pages, [&](uint32_t, uint32_t step) { return q[step]; }, one);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) s[0][n][i] = one[0][0][i] * args_.scale_log2;
    }
    mask(s[0], page * kPageTokens, [&](uint32_t column) -> Limits {
      const uint32_t row = (current.first_column + column) / args_.group;
      const uint32_t position = current.start + row;
      if (row >= current.rows || position / kPageTokens != page) return {0, 0};
      return {this->limits_of(current, column).from, position + 1};
    });
    state_.weigh(s);
    uint32_t weights[kTiles][2];
    pack_weights<Math::kBf16>(s[0], 1.0F, 1.0F, weights);
    Values<Coding::kBf16, kDim, C::Value::kRunChannels>::accumulate(keys + kSection, weights,
                                                                    state_.acc);
    __syncwarp();
  }

  __device__ void load_exact_page(const DecodeUnit& current, uint32_t page, std::byte* keys,
                                  std::byte* values) const {
    SequenceSlot slot;
    slot.first_row = current.first_row;
    slot.rows = current.rows;
    slot.start = current.start;
    slot.tail = args_.step.slots[current.slot].tail;
    constexpr uint32_t kVectors = kDim / 8;
    for (uint32_t i = lane(); i < kPageTokens * kVectors; i += kWarp) {
      const uint32_t position = page * kPageTokens + i / kVectors;
      uint4 key = {0, 0, 0, 0};
      uint4 value = {0, 0, 0, 0};
      if (position < current.start + current.rows) {
        const ExactRow row = exact_row(slot, current.slot, current.kv_head, position, args_.qkv,
                                       args_.columns, args_.layer);
        key = reinterpret_cast<const uint4*>(row.key)[i % kVectors];
        value = reinterpret_cast<const uint4*>(row.value)[i % kVectors];
      }
      reinterpret_cast<uint4*>(keys)[i] = key;
      reinterpret_cast<uint4*>(values)[i] = value;
    }
    __syncwarp();
  }

  // This warp's state of the unit into the merge buffers, tile by tile. The buffer keeps channels
  // in the order of the accumulators, which spreads them over the banks.
  __device__ void leave(uint32_t index) {
    const uint32_t g = lane() / 4;
    const uint32_t j = lane() % 4;
#pragma unroll
    for (uint32_t n = 0; n < kTiles; ++n) {
      const uint32_t item = index * kTiles + n;
      barrier_wait(this->merge_empty() + item % 2, item / 2 % 2 ^ 1);
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        float sum = state_.sum[n][i];
        for (int other = 4; other < 32; other *= 2) sum += __shfl_xor_sync(kAllLanes, sum, other);
        if (g == 0) this->sums(item % 2)[warp() * 8 + 2 * j + i] = {state_.max[n][i], sum};
      }
      float* rows = this->merge(item % 2) + (warp() * 8 + 2 * j) * C::kPadded + g;
#pragma unroll
      for (uint32_t t = 0; t < C::Value::kTiles; ++t)
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
          rows[i % 2 * C::kPadded + t * 16 + i / 2 * 8] = state_.acc[n][t][i];
      __syncwarp();
      if (lane() == 0) barrier_arrive(this->merge_full() + item % 2);
    }
  }

  Ring<C> ring_;
  State<C, kTiles> state_;
};

}  // namespace tandem::cuda::paged
