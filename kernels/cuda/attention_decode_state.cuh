#pragma once

#include "kernels/cuda/attention_decode_math.cuh"

// Parts of attention_decode_block.cuh: queries as fragments, the online softmax of one warp, and
// how the results of several are put together.
namespace tandem::cuda::decode {

// ---- queries ----

template <Math M, uint32_t kWords>
__device__ __forceinline__ void rescale(uint32_t (&fragment)[kWords], float by) {
#pragma unroll
  for (uint32_t& two : fragment)
    two = pack<M>(__uint_as_float(two << 16) * by, __uint_as_float(two & 0xffff0000U) * by);
}

// bf16 to half, scaled by a power of two per column so that the largest lies in [2^kTop,
// 2^(kTop+1)). Returns what undoes the scaling.
template <uint32_t kTop, uint32_t kWords>
__device__ __forceinline__ float halve(uint32_t (&fragment)[kWords]) {
  float top = 0.0F;
#pragma unroll
  for (const uint32_t two : fragment)
    top = fmaxf(
        top, fmaxf(fabsf(__uint_as_float(two << 16)), fabsf(__uint_as_float(two & 0xffff0000U))));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
  const uint32_t exponent = min(max(__float_as_uint(top) >> 23, 20U), 240U);  // biased by 127
  rescale<Math::kHalf>(fragment, __uint_as_float((254U + kTop - exponent) << 23));
  return __uint_as_float((exponent - kTop) << 23);
}

// The sum of halves' elements.
template <uint32_t kWords>
__device__ __forceinline__ float sum_halves(const uint32_t (&fragment)[kWords]) {
  float sum = 0.0F;
#pragma unroll
  for (const uint32_t two : fragment)
    sum += half_value(static_cast<uint16_t>(two)) + half_value(static_cast<uint16_t>(two >> 16));
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  return sum + __shfl_xor_sync(kAllLanes, sum, 2);
}

// One query row as K wants it, for this lane.
template <class K, uint32_t kSteps>
struct Query {
  uint2 fragment[kSteps];
  float factor = 1.0F;  // undoes its scaling
  float start = 0.0F;   // of its scores: what K::kBias adds to them, taken off

  // Null: zeros.
  __device__ __forceinline__ void load(const Bf16* q) {
    const uint32_t j = threadIdx.x % 4;
    uint32_t fragments[2 * kSteps];
#pragma unroll
    for (uint32_t c = 0; c < K::kChunks; ++c) {
      uint32_t words[K::kChannels / 2] = {};
      if (q != nullptr) {
#pragma unroll
        for (uint32_t i = 0; i < K::kChannels / 8; ++i) {
          const auto* from = reinterpret_cast<const std::byte*>(q + (c * 4 + j) * K::kChannels);
          const Chunk<16> eight(from + 16 * i);
#pragma unroll
          for (uint32_t w = 0; w < 4; ++w) words[4 * i + w] = eight.word[w];
        }
      }
#pragma unroll
      for (uint32_t r = 0; r < K::kChannels / 2; ++r)
        fragments[c * (K::kChannels / 2) + r] = words[K::word(r)];
    }
    if constexpr (K::kMath == Math::kHalf) factor = halve<K::kQueryTop>(fragments);
    if constexpr (K::kBias != 0) start = -K::kBias * sum_halves(fragments);
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) fragment[i] = {fragments[2 * i], fragments[2 * i + 1]};
  }
};

// ---- softmax ----

// What a query sees.
struct Limits {
  uint32_t from;
  uint32_t end;
};

// A running maximum is only raised when a score passes it by this much (log2): weights stay below
// 2^8, and most pages need no rescaling.
constexpr float kSlack = 8.0F;

// log2 of a token's scale; that of zero is the smallest half's.
__device__ __forceinline__ float scale_log2(float scale) { return __log2f(fmaxf(scale, 0x1p-24F)); }

// ---- state of a walker ----

// The maximum before the first score: below every score, and no infinity, whose differences are not
// numbers.
constexpr float kNoMaximum = -0x1p100F;

// Sums over the tokens seen, of columns 2j and 2j+1. Values that are stored with a scale a token
// are multiplied by their weights as they are stored, so weights carry the scale; in halves they
// must neither pass 2^16 nor all be tiny, so `max` is that of score plus log2 of the scale.
template <class C>
struct State {
  float max[2];
  float sum[2];  // of this lane's tokens
  float acc[C::Value::kTiles][4];
  static constexpr bool kHasBase = C::kValue == Coding::kFourBitRows;
  float base[4];  // where minima are summed by themselves: joins every channel of the lane

  __device__ void clear() {
    max[0] = max[1] = kNoMaximum;
    sum[0] = sum[1] = 0.0F;
#pragma unroll
    for (auto& tile : acc)
#pragma unroll
      for (float& x : tile) x = 0.0F;
    if constexpr (kHasBase) base[0] = base[1] = base[2] = base[3] = 0.0F;
  }

  // Register i of a tile of channels.
  __device__ __forceinline__ float total(uint32_t tile, uint32_t i) const {
    if constexpr (kHasBase) return acc[tile][i] + base[i % 2];
    return acc[tile][i];
  }

  // Scores (log2) of a page become weights, relative to a maximum that all lanes share. `sized`:
  // the scores, plus log2 of their tokens' scales where weights carry these.
  __device__ __forceinline__ void weigh(float (&s)[4], const float (&sized)[4]) {
    float top[2];
    bool beyond = false;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      top[i] = fmaxf(sized[i], sized[i + 2]);
      beyond |= top[i] > max[i] + kSlack;
    }
    if (__any_sync(kAllLanes, beyond)) raise(top);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) s[i] = fast_exp2(s[i] - max[i % 2]);
    sum[0] += s[0] + s[2];
    sum[1] += s[1] + s[3];
  }
  __device__ __forceinline__ void weigh(float (&s)[4]) { weigh(s, s); }

  __device__ void raise(float (&top)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      for (int lane = 4; lane < 32; lane *= 2)
        top[i] = fmaxf(top[i], __shfl_xor_sync(kAllLanes, top[i], lane));
      // Not for the others' sake: what a column gets depends on nothing but itself.
      const float next = top[i] > max[i] + kSlack ? top[i] : max[i];
      const float factor = fast_exp2(max[i] - next);
      max[i] = next;
      sum[i] *= factor;
#pragma unroll
      for (auto& tile : acc) {
        tile[i] *= factor;
        tile[i + 2] *= factor;
      }
      if constexpr (kHasBase) base[i] *= factor;
    }
  }
};

// P^T fragments of one page: weights of tokens g and g+8, times their scales.
template <Math M>
__device__ __forceinline__ void pack_weights(const float (&s)[4], const float (&scales)[2],
                                             uint32_t (&p)[2]) {
  p[0] = transpose8x8(pack<M>(s[0] * scales[0], s[1] * scales[0]));
  p[1] = transpose8x8(pack<M>(s[2] * scales[1], s[3] * scales[1]));
}

// Of tokens g and g+8 of the page that begins at position `first`; columns 2j and 2j+1 see the same
// (kViews 1) or what `seen` says of each.
template <uint32_t kViews>
__device__ __forceinline__ void mask(float (&s)[4], uint32_t first, const Limits (&seen)[kViews]) {
  const uint32_t g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t position = first + g + i / 2 * 8;
    const Limits& limits = seen[i % kViews];
    if (position < limits.from || position >= limits.end) s[i] = -INFINITY;
  }
}

// ---- results ----

// Rescales parts to their common maximum and adds them up in order.
struct Merge {
  float max = kNoMaximum;
  float sum = 0.0F;
  float4 acc = {0.0F, 0.0F, 0.0F, 0.0F};
  __device__ void add(float2 part, const float4& x) {
    const float f = fast_exp2(part.x - max);
    sum += f * part.y;
    acc.x += f * x.x;
    acc.y += f * x.y;
    acc.z += f * x.z;
    acc.w += f * x.w;
  }
};

}  // namespace tandem::cuda::decode
