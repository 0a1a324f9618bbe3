#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kv_lanes.cuh"

// common/kv/codec.h from rows in registers (kv_lanes.cuh); the same bytes as kv_codec.cuh writes.
// Rounding to an integer is an addition: the conversion instructions have a quarter of its rate or
// less, and here every value is far below 2^22.
namespace tandem::cuda {

constexpr float kRoundToInteger = 0x1.8p23F;
constexpr uint32_t kRoundToIntegerBits = 0x4b400000U;

__device__ __forceinline__ float max_or_nan(float a, float b) {
  float top;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(top) : "f"(a), "f"(b));
  return top;
}

// Largest magnitude of this lane's values, all of which are clean afterwards but for the sign of
// zeros. Values that need cleaning are rare: one comparison finds that there are none.
__device__ __forceinline__ float clean_lane(float (&x)[kLaneChannels]) {
  float top = 0.0F;
#pragma unroll
  for (uint32_t i = 0; i < kLaneChannels; ++i) top = max_or_nan(top, fabsf(x[i]));
  if (top <= kv::kMaxMagnitude) return top;
  top = 0.0F;
#pragma unroll
  for (uint32_t i = 0; i < kLaneChannels; ++i) {
    x[i] = kv_clean(x[i]);
    top = fmaxf(top, fabsf(x[i]));
  }
  return top;
}

// Four levels as bytes, the first lowest. |x| * inverse <= 127 by the choice of the scale.
__device__ __forceinline__ uint32_t int8_levels(const float* x, float inverse) {
  uint32_t level[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    level[i] = __float_as_uint(__fadd_rn(__fmul_rn(x[i], inverse), kRoundToInteger));
  return __byte_perm(__byte_perm(level[0], level[1], 0x0040),
                     __byte_perm(level[2], level[3], 0x0040), 0x5410);
}
// Adding zero makes a +0 of -0, as cleaning does.
__device__ __forceinline__ uint32_t e4m3_levels(const float* x, float inverse) {
  const auto two = [&](uint32_t i) {
    return uint32_t{__nv_cvt_float2_to_fp8x2(
        {__fmaf_rn(x[i], inverse, 0.0F), __fmaf_rn(x[i + 1], inverse, 0.0F)}, __NV_SATFINITE,
        __NV_E4M3)};
  };
  return two(0) | two(2) << 16;
}

// int8 and fp8 rows. Called by whole warps; lanes that do not `write` hold zeros or garbage of
// their own row.
template <Coding C, uint32_t kLanes>
__device__ __forceinline__ void encode_scaled(float (&x)[kLaneChannels], uint32_t head_dim,
                                              const Place& at, uint32_t token, bool write,
                                              std::byte* section) {
  constexpr float kTop = C == Coding::kInt8 ? 127.0F : kv::kMaxE4m3;
  const float amplitude = lanes_reduce(clean_lane(x), kLanes, larger);
  if (!write) return;
  uint16_t h = half_bits(__fmul_rn(amplitude, 1.0F / kTop));
  if (__fmul_rn(half_value(h), kTop) < amplitude) ++h;
  const bool none = amplitude < kv::kMinAmplitude;
  const float inverse = none ? 0.0F : __frcp_rn(half_value(h));
  std::byte* row = section + token * head_dim;
  const auto levels = [&](const float* from) {
    return C == Coding::kInt8 ? int8_levels(from, inverse) : e4m3_levels(from, inverse);
  };
  *reinterpret_cast<uint2*>(row + at.a) = {levels(x), levels(x + 4)};
  *reinterpret_cast<uint2*>(row + at.b) = {levels(x + 8), levels(x + 12)};
  if (at.a == 0)
    reinterpret_cast<uint16_t*>(section + kPageTokens * head_dim)[token] = none ? uint16_t{0} : h;
}

// Fits a group of kLanes * 16 values; lanes that are not `live` have none. Returns this lane's
// levels, four bits each, the first lowest. Called by whole warps.
template <uint32_t kLanes>
__device__ __forceinline__ uint2 fit_lane(float (&x)[kLaneChannels], bool live, Grid& grid) {
  clean_lane(x);
  float lo = x[0];
  float high = x[0];
#pragma unroll
  for (uint32_t i = 1; i < kLaneChannels; ++i) {
    lo = fminf(lo, x[i]);
    high = fmaxf(high, x[i]);
  }
  lo = __fadd_rn(lanes_reduce(live ? lo : INFINITY, kLanes, smaller), 0.0F);
  const float range = __fsub_rn(lanes_reduce(live ? high : -INFINITY, kLanes, larger), lo);
  const bool flat = range < kv::kMinRange;
  const float to_units = __fdiv_rn(kv::kFitUnits, flat ? 1.0F : range);
  float u[kLaneChannels];
#pragma unroll
  for (uint32_t i = 0; i < kLaneChannels; ++i)
    u[i] = __fsub_rn(__fadd_rn(__fmul_rn(__fsub_rn(x[i], lo), to_units), kRoundToInteger),
                     kRoundToInteger);
  kv::FitCandidate best{};
  float best_cost = INFINITY;
  for_each_candidate([&](auto i) {
    constexpr kv::FitCandidate candidate = kv::kFitCandidates[decltype(i)::value];
    const float own = run_cost<decltype(i)::value>(u);
    const float cost =
        lanes_reduce(live ? own : 0.0F, kLanes, [](float a, float b) { return a + b; });
    if (cost < best_cost) {
      best_cost = cost;
      best = candidate;
    }
  });
  grid = grid_of(best, lo, range);
  if (flat) grid = {0, half_bits(lo)};
  const float minimum = half_value(grid.minimum);
  const float inverse = flat ? 0.0F : __frcp_rn(half_value(grid.scale));
  uint32_t levels[2] = {};
#pragma unroll
  for (uint32_t i = 0; i < kLaneChannels; ++i) {
    const float level = __fmul_rn(__fsub_rn(x[i], minimum), inverse);
    const float kept = fminf(fmaxf(level, 0.0F), 15.0F);  // the ends are integers: before rounding
    const uint32_t bits = __float_as_uint(__fadd_rn(kept, kRoundToInteger)) - kRoundToIntegerBits;
    levels[i / 8] += bits << (4 * (i % 8));
  }
  return {levels[0], levels[1]};
}

// Four-bit rows of lanes at straight_place().
__device__ __forceinline__ void encode_v4(float (&x)[kLaneChannels], uint32_t head_dim,
                                          const Place& at, uint32_t token, bool write,
                                          std::byte* section) {
  constexpr uint32_t kGroupLanes = kv::kV4Group / kLaneChannels;
  Grid grid;
  const uint2 levels = fit_lane<kGroupLanes>(x, at.live, grid);
  if (!write) return;
  *reinterpret_cast<uint2*>(section + (token * head_dim + at.a) / 2) = levels;
  if (at.a % kv::kV4Group != 0) return;
  const uint32_t groups = kv::v4_groups(head_dim);
  auto* scales = reinterpret_cast<uint16_t*>(section + kPageTokens * head_dim / 2) +
                 token * groups + at.a / kv::kV4Group;
  scales[0] = grid.scale;
  scales[kPageTokens * groups] = grid.minimum;
}

// A row as token `token` of a section, from `x` or, where elements are bf16, from `bits`.
template <Coding C, uint32_t kLanes>
__device__ __forceinline__ void encode_lane(float (&x)[kLaneChannels], const LaneBits& bits,
                                            uint32_t head_dim, const Place& at, uint32_t token,
                                            bool write, std::byte* section) {
  static_assert(C != Coding::kFourBitChannels);
  if constexpr (C == Coding::kF32) {
    if (!write) return;
    auto* row = reinterpret_cast<float*>(section) + token * head_dim;
#pragma unroll
    for (uint32_t i = 0; i < kLaneChannels; i += 4) {
      const uint32_t c = (i < kRunChannels ? at.a : at.b - kRunChannels) + i;
      *reinterpret_cast<float4*>(row + c) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
    }
  } else if constexpr (C == Coding::kBf16) {
    if (!write) return;
    LaneBits quieted = bits;
    quiet(quieted);
    store_lane(quieted, reinterpret_cast<Bf16*>(section) + token * head_dim, at);
  } else if constexpr (C == Coding::kFourBitRows) {
    encode_v4(x, head_dim, at, token, write, section);
  } else {
    encode_scaled<C, kLanes>(x, head_dim, at, token, write, section);
  }
}

// Channel threadIdx.x of 16 rows of bf16 in shared memory, `stride` elements apart, as
// kFourBitChannels. Called by whole warps whose first thread is a multiple of 32; head_dim is a
// multiple of 8.
__device__ __forceinline__ void encode_k4_channel(const Bf16* rows, uint32_t stride, uint32_t c,
                                                  uint32_t head_dim, std::byte* section) {
  const bool live = c < head_dim;
  float x[kPageTokens];
#pragma unroll
  for (uint32_t t = 0; t < kPageTokens; ++t)
    x[t] = live ? bf16_value(rows[t * stride + c].bits) : 0.0F;
  Grid grid;
  const uint2 levels = fit_lane<1>(x, live, grid);
  // Lanes hold a channel's 16 tokens; bytes hold two channels of a token. Eight lanes swap halves,
  // quarters and eighths, until each has four bytes of two tokens.
  const bool odd = c % 2 != 0;
  const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? levels.x : levels.y, 1);
  const uint32_t first = odd ? other : levels.x;   // of the even channel, eight tokens
  const uint32_t second = odd ? levels.y : other;  // of the odd one, the same tokens
  const uint32_t even_tokens = (first & 0x0f0f0f0fU) | (second & 0x0f0f0f0fU) << 4;
  const uint32_t odd_tokens = (first >> 4 & 0x0f0f0f0fU) | (second & 0xf0f0f0f0U);
  const bool right = c / 4 % 2 != 0;
  const uint32_t kept = right ? odd_tokens : even_tokens;
  const uint32_t swapped = __shfl_xor_sync(kAllLanes, right ? even_tokens : odd_tokens, 4);
  const uint32_t p = right ? swapped : kept;  // four tokens of channel pair 0 or 1
  const uint32_t q = right ? kept : swapped;  // of pair 2 or 3
  const uint32_t lower = __byte_perm(p, q, 0x5410);
  const uint32_t upper = __byte_perm(p, q, 0x7632);
  const uint32_t pair = c / 2 % 2;
  const uint32_t mine = pair == 0 ? lower : upper;
  const uint32_t theirs = __shfl_xor_sync(kAllLanes, pair == 0 ? upper : lower, 2);
  if (!live) return;
  const uint32_t even_pairs = pair == 0 ? mine : theirs;
  const uint32_t odd_pairs = pair == 0 ? theirs : mine;
  const uint32_t token = (odd ? 8 : 0) + pair * 4 + (right ? 1 : 0);
  std::byte* word = section + token * (head_dim / 2) + c / 8 * 4;
  *reinterpret_cast<uint32_t*>(word) = __byte_perm(even_pairs, odd_pairs, 0x6240);
  *reinterpret_cast<uint32_t*>(word + head_dim) = __byte_perm(even_pairs, odd_pairs, 0x7351);
  auto* scales = reinterpret_cast<uint16_t*>(section + kPageTokens * (head_dim / 2));
  scales[c] = grid.scale;
  scales[head_dim + c] = grid.minimum;
}

}  // namespace tandem::cuda
