#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/kv/codec.h"
#include "kernels/cuda/kv_page.cuh"

// common/kv/codec.h on the device: the same bytes from the same floats, the same floats from the
// same bytes. Arithmetic that decides bytes is spelled with rounding intrinsics, which the compiler
// does not contract into fused multiply-adds. Functions named warp_* are called by whole warps.
namespace tandem::cuda {

// How one side of a layout keeps its elements.
enum class Coding : uint8_t { kF32, kBf16, kInt8, kE4m3, kFourBitRows, kFourBitChannels };

constexpr Coding key_coding(kv::KvFormat format) {
  switch (format) {
    case kv::KvFormat::kF32:
      return Coding::kF32;
    case kv::KvFormat::kBf16:
      return Coding::kBf16;
    case kv::KvFormat::kInt8:
    case kv::KvFormat::kK8V4:
      return Coding::kInt8;
    case kv::KvFormat::kInt4:
      return Coding::kFourBitChannels;
    case kv::KvFormat::kFp8E4M3:
      return Coding::kE4m3;
  }
  return Coding::kF32;
}
constexpr Coding value_coding(kv::KvFormat format) {
  return format == kv::KvFormat::kK8V4 || format == kv::KvFormat::kInt4 ? Coding::kFourBitRows
                                                                        : key_coding(format);
}

constexpr uint32_t kAllLanes = 0xffffffffU;
constexpr uint32_t kWarp = 32;

__device__ inline float warp_max(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}
__device__ inline float warp_sum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
  return x;
}

__device__ inline float kv_clean(float x) {
  if (isnan(x)) return 0.0F;
  return __fadd_rn(fminf(fmaxf(x, -kv::kMaxMagnitude), kv::kMaxMagnitude), 0.0F);
}
__device__ inline float clamp_level(float x, float low, float high) {
  return fminf(fmaxf(rintf(x), low), high);
}
// codec.h keeps what a NaN has in its upper half; the conversion instruction does not.
__device__ inline uint16_t bf16_bits(float x) { return to_bf16(x).bits; }
__device__ inline uint16_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ inline float half_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ inline float bf16_value(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ inline float e4m3_value(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

// The 16-level grid of codec.h.
struct Grid {
  uint16_t scale = 0;
  uint16_t minimum = 0;
};
__device__ inline Grid grid_of(const kv::FitCandidate& best, float lo, float range) {
  const float unit = __fdiv_rn(range, kv::kFitUnits);
  return {half_bits(__fmul_rn(best.step, unit)), half_bits(__fmaf_rn(best.offset, unit, lo))};
}
// Calls f with each candidate's index as a constant: device code may use the values of a host
// array, not its address.
template <typename F>
__device__ void for_each_candidate(const F& f) {
  [&]<size_t... I>(std::index_sequence<I...>) { (f(std::integral_constant<size_t, I>{}), ...); }
  (std::make_index_sequence<std::size(kv::kFitCandidates)>{});
}
__device__ inline int32_t fit_error(float u, const kv::FitCandidate& c) {
  const float d = __fsub_rn(u, c.offset);
  const float t = clamp_level(__fmul_rn(d, 1.0F / c.step), 0.0F, 15.0F);
  return static_cast<int32_t>(__fsub_rn(d, __fmul_rn(t, c.step)));
}
__device__ inline uint32_t grid_level(float x, float minimum, float inverse) {
  return static_cast<uint32_t>(clamp_level(__fmul_rn(__fsub_rn(x, minimum), inverse), 0.0F, 15.0F));
}

// One group of n <= 32 cleaned values, one a lane; lanes from n on pass anything. Returns the level
// of this lane's value.
__device__ inline uint32_t warp_fit_group(float x, uint32_t n, Grid& grid) {
  const bool inside = threadIdx.x % kWarp < n;
  const float lo = -warp_max(inside ? -x : -INFINITY);
  const float range = __fsub_rn(warp_max(inside ? x : -INFINITY), lo);
  if (range < kv::kMinRange) {
    grid = {0, half_bits(lo)};
    return 0;
  }
  const float u = rintf(__fmul_rn(__fsub_rn(x, lo), __fdiv_rn(kv::kFitUnits, range)));
  kv::FitCandidate best{};
  int32_t best_cost = INT32_MAX;
  for_each_candidate([&](auto i) {
    constexpr kv::FitCandidate c = kv::kFitCandidates[decltype(i)::value];
    const int32_t e = inside ? fit_error(u, c) : 0;
    const int32_t cost = __reduce_add_sync(kAllLanes, e * e);
    if (cost < best_cost) {
      best_cost = cost;
      best = c;
    }
  });
  grid = grid_of(best, lo, range);
  return grid_level(x, half_value(grid.minimum), __frcp_rn(half_value(grid.scale)));
}

// The same over 16 values of one thread: levels four bits each, the first lowest.
__device__ inline uint64_t fit_page_channel(const float (&x)[kPageTokens], Grid& grid) {
  float lo = x[0];
  float high = x[0];
#pragma unroll
  for (uint32_t t = 1; t < kPageTokens; ++t) {
    lo = fminf(lo, x[t]);
    high = fmaxf(high, x[t]);
  }
  const float range = __fsub_rn(high, lo);
  if (range < kv::kMinRange) {
    grid = {0, half_bits(lo)};
    return 0;
  }
  const float to_units = __fdiv_rn(kv::kFitUnits, range);
  kv::FitCandidate best{};
  int32_t best_cost = INT32_MAX;
  for_each_candidate([&](auto i) {
    constexpr kv::FitCandidate c = kv::kFitCandidates[decltype(i)::value];
    int32_t cost = 0;
#pragma unroll
    for (uint32_t t = 0; t < kPageTokens; ++t) {
      const int32_t e = fit_error(rintf(__fmul_rn(__fsub_rn(x[t], lo), to_units)), c);
      cost += e * e;
    }
    if (cost < best_cost) {
      best_cost = cost;
      best = c;
    }
  });
  grid = grid_of(best, lo, range);
  const float minimum = half_value(grid.minimum);
  const float inverse = __frcp_rn(half_value(grid.scale));
  uint64_t levels = 0;
#pragma unroll
  for (uint32_t t = 0; t < kPageTokens; ++t) {
    levels |= uint64_t{grid_level(x[t], minimum, inverse)} << (4 * t);
  }
  return levels;
}

// ---- runs: eight values a lane, a group spread over kLanes neighbouring lanes ----

constexpr uint32_t kRun = 8;

template <typename Op>
__device__ __forceinline__ float lanes_reduce(float x, uint32_t lanes, const Op& op) {
  for (uint32_t i = lanes / 2; i > 0; i /= 2) x = op(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float smaller(float a, float b) { return fminf(a, b); }

// Sum of squared errors of this lane's levels under one candidate. No level can leave 0 .. 15: the
// candidates move the ends of the grid by less than half a step. Where the rounding to a level is a
// tie, both ways give the same square, so it need not be the codec's; all numbers are exact.
template <size_t kIndex, uint32_t kCount>
__device__ __forceinline__ float run_cost(const float (&u)[kCount]) {
  constexpr kv::FitCandidate c = kv::kFitCandidates[kIndex];
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to an integer
  static_assert(c.offset * 2 < c.step && (kv::kFitUnits - c.offset) * 2 < 31 * c.step);
  float cost = 0.0F;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    const float d = u[i] - c.offset;
    const float t = __fsub_rn(__fmaf_rn(d, 1.0F / c.step, kRound), kRound);
    const float e = __fmaf_rn(t, -c.step, d);
    cost = __fmaf_rn(e, e, cost);
  }
  return cost;
}

// Fits a group of kLanes * 8 values; returns this lane's levels, four bits each, the first lowest.
template <uint32_t kLanes>
__device__ __forceinline__ uint32_t fit_run(float (&x)[kRun], Grid& grid) {
  float lo = INFINITY;
  float high = -INFINITY;
#pragma unroll
  for (uint32_t i = 0; i < kRun; ++i) {
    x[i] = kv_clean(x[i]);
    lo = fminf(lo, x[i]);
    high = fmaxf(high, x[i]);
  }
  lo = lanes_reduce(lo, kLanes, smaller);
  const float range = __fsub_rn(lanes_reduce(high, kLanes, larger), lo);
  const bool flat = range < kv::kMinRange;
  const float to_units = __fdiv_rn(kv::kFitUnits, flat ? 1.0F : range);
  float u[kRun];
#pragma unroll
  for (uint32_t i = 0; i < kRun; ++i) u[i] = rintf(__fmul_rn(__fsub_rn(x[i], lo), to_units));
  kv::FitCandidate best{};
  float best_cost = INFINITY;
  for_each_candidate([&](auto i) {
    constexpr kv::FitCandidate candidate = kv::kFitCandidates[decltype(i)::value];
    const float cost = lanes_reduce(run_cost<decltype(i)::value>(u), kLanes,
                                    [](float a, float b) { return a + b; });
    if (cost < best_cost) {
      best_cost = cost;
      best = candidate;
    }
  });
  grid = grid_of(best, lo, range);
  if (flat) grid = {0, half_bits(lo)};
  const float minimum = half_value(grid.minimum);
  const float inverse = flat ? 0.0F : __frcp_rn(half_value(grid.scale));
  uint32_t levels = 0;
#pragma unroll
  for (uint32_t i = 0; i < kRun; ++i) levels |= grid_level(x[i], minimum, inverse) << (4 * i);
  return levels;
}

// Where one token's row lies in a section, or what is to be copied there.
struct RowPlace {
  std::byte* elements = nullptr;
  uint16_t* scales = nullptr;  // one, or one a group
  uint16_t* minima = nullptr;  // kFourBitRows
};

// Channels c .. c+7 of one token of a V section, head_dim a multiple of kV4Group. Lanes that are
// only there for their neighbours' sake do not `write`.
__device__ __forceinline__ void store_v4_run(float (&x)[kRun], uint32_t c, bool write,
                                             const RowPlace& to) {
  Grid grid;
  const uint32_t levels = fit_run<kv::kV4Group / kRun>(x, grid);
  if (!write) return;
  *reinterpret_cast<uint32_t*>(to.elements + c / 2) = levels;
  if (c % kv::kV4Group != 0) return;
  to.scales[c / kv::kV4Group] = grid.scale;
  to.minima[c / kv::kV4Group] = grid.minimum;
}

template <typename Bytes>
__device__ void warp_store_bytes(uint32_t n, std::byte* to, const Bytes& byte_at) {
  const uint32_t lane = threadIdx.x % kWarp;
  if (n % 4 == 0) {  // rows then begin at multiples of four
    for (uint32_t c = lane * 4; c < n; c += kWarp * 4) {
      const uint32_t word = uint32_t{byte_at(c)} | uint32_t{byte_at(c + 1)} << 8 |
                            uint32_t{byte_at(c + 2)} << 16 | uint32_t{byte_at(c + 3)} << 24;
      *reinterpret_cast<uint32_t*>(to + c) = word;
    }
  } else {
    for (uint32_t c = lane; c < n; c += kWarp) to[c] = static_cast<std::byte>(byte_at(c));
  }
}

// int8 and fp8 rows: `top` is the largest magnitude of an element.
template <typename Level>
__device__ void warp_encode_scaled_row(const float* row, uint32_t head_dim, const RowPlace& to,
                                       float top, const Level& level) {
  const uint32_t lane = threadIdx.x % kWarp;
  float amplitude = 0.0F;
  for (uint32_t c = lane; c < head_dim; c += kWarp)
    amplitude = fmaxf(amplitude, fabsf(kv_clean(row[c])));
  amplitude = warp_max(amplitude);
  if (amplitude < kv::kMinAmplitude) {
    warp_store_bytes(head_dim, to.elements, [](uint32_t) { return uint8_t{0}; });
    if (lane == 0) *to.scales = 0;
    return;
  }
  uint16_t h = half_bits(__fmul_rn(amplitude, __frcp_rn(top)));
  if (__fmul_rn(half_value(h), top) < amplitude) ++h;
  const float inverse = __frcp_rn(half_value(h));
  warp_store_bytes(head_dim, to.elements,
                   [&](uint32_t c) { return level(__fmul_rn(kv_clean(row[c]), inverse)); });
  if (lane == 0) *to.scales = h;
}

__device__ inline void warp_encode_v4_row(const float* row, uint32_t head_dim, const RowPlace& to) {
  const uint32_t lane = threadIdx.x % kWarp;
  if (head_dim % kv::kV4Group == 0) {
    const uint32_t c = min(lane * kRun, head_dim - kRun);
    float x[kRun];
#pragma unroll
    for (uint32_t i = 0; i < kRun; ++i) x[i] = row[c + i];
    return store_v4_run(x, c, lane * kRun < head_dim, to);
  }
  const uint32_t groups = kv::v4_groups(head_dim);
  for (uint32_t g = 0; g < groups; ++g) {
    const uint32_t first = g * kv::kV4Group;
    const uint32_t n = min(kv::kV4Group, head_dim - first);
    Grid grid;
    const uint32_t level = warp_fit_group(lane < n ? kv_clean(row[first + lane]) : 0.0F, n, grid);
    const uint32_t byte = level | __shfl_down_sync(kAllLanes, level, 1) << 4;
    if (lane % 2 == 0 && lane < n) to.elements[(first + lane) / 2] = static_cast<std::byte>(byte);
    if (lane == 0) {
      to.scales[g] = grid.scale;
      to.minima[g] = grid.minimum;
    }
  }
}

template <Coding C>
__device__ RowPlace row_place(std::byte* section, uint32_t head_dim, uint32_t token) {
  static_assert(C != Coding::kFourBitChannels);
  if constexpr (C == Coding::kF32) {
    return {section + token * head_dim * sizeof(float)};
  } else if constexpr (C == Coding::kBf16) {
    return {section + token * head_dim * sizeof(Bf16)};
  } else if constexpr (C == Coding::kFourBitRows) {
    const uint32_t groups = (head_dim + kv::kV4Group - 1) / kv::kV4Group;
    auto* scales = reinterpret_cast<uint16_t*>(section + kPageTokens * (head_dim / 2));
    return {section + token * (head_dim / 2), scales + token * groups,
            scales + (kPageTokens + token) * groups};
  } else {
    return {section + token * head_dim,
            reinterpret_cast<uint16_t*>(section + kPageTokens * head_dim) + token};
  }
}

// Encodes row[head_dim] (shared memory) as one token's; not kFourBitChannels.
template <Coding C>
__device__ void warp_encode_row(const float* row, uint32_t head_dim, const RowPlace& place) {
  const uint32_t lane = threadIdx.x % kWarp;
  static_assert(C != Coding::kFourBitChannels);
  if constexpr (C == Coding::kF32) {
    auto* to = reinterpret_cast<float*>(place.elements);
    for (uint32_t c = lane; c < head_dim; c += kWarp) to[c] = row[c];
  } else if constexpr (C == Coding::kBf16) {
    auto* to = reinterpret_cast<uint32_t*>(place.elements);
    for (uint32_t c = lane; c < head_dim / 2; c += kWarp)
      to[c] = uint32_t{bf16_bits(row[2 * c])} | uint32_t{bf16_bits(row[2 * c + 1])} << 16;
  } else if constexpr (C == Coding::kInt8) {
    warp_encode_scaled_row(row, head_dim, place, 127.0F, [](float x) {
      return static_cast<uint8_t>(static_cast<int8_t>(clamp_level(x, -127.0F, 127.0F)));
    });
  } else if constexpr (C == Coding::kE4m3) {
    warp_encode_scaled_row(row, head_dim, place, kv::kMaxE4m3, [](float x) {
      return static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
    });
  } else {
    warp_encode_v4_row(row, head_dim, place);
  }
}
template <Coding C>
__device__ void warp_encode_row(const float* row, uint32_t head_dim, uint32_t token,
                                std::byte* section) {
  warp_encode_row<C>(row, head_dim, row_place<C>(section, head_dim, token));
}

// Encodes 16 rows (shared memory, `stride` floats apart) as kFourBitChannels. Called by the whole
// block, which must synchronize before `rows` changes; `levels` is shared memory for head_dim
// words.
__device__ inline void block_encode_k4_page(const float* rows, uint32_t stride, uint32_t head_dim,
                                            uint64_t* levels, std::byte* section) {
  auto* scales = reinterpret_cast<uint16_t*>(section + kPageTokens * (head_dim / 2));
  uint16_t* minima = scales + head_dim;
  if (head_dim % (kWarp / 2) == 0) {  // whole warps: two lanes a channel
    for (uint32_t i = threadIdx.x; i < 2 * head_dim; i += blockDim.x) {
      const uint32_t c = i / 2;
      float x[kRun];
#pragma unroll
      for (uint32_t t = 0; t < kRun; ++t) x[t] = rows[(i % 2 * kRun + t) * stride + c];
      Grid grid;
      reinterpret_cast<uint32_t*>(levels)[i] = fit_run<2>(x, grid);
      if (i % 2 != 0) continue;
      scales[c] = grid.scale;
      minima[c] = grid.minimum;
    }
  } else {
    for (uint32_t c = threadIdx.x; c < head_dim; c += blockDim.x) {
      float x[kPageTokens];
#pragma unroll
      for (uint32_t t = 0; t < kPageTokens; ++t) x[t] = kv_clean(rows[t * stride + c]);
      Grid grid;
      levels[c] = fit_page_channel(x, grid);
      scales[c] = grid.scale;
      minima[c] = grid.minimum;
    }
  }
  __syncthreads();
  const uint32_t row = head_dim / 2;
  for (uint32_t i = threadIdx.x; i < kPageTokens * row; i += blockDim.x) {
    const uint32_t shift = i / row * 4;
    const uint32_t c = i % row * 2;
    const uint64_t both = (levels[c] >> shift & 0xfU) | (levels[c + 1] >> shift & 0xfU) << 4;
    section[i] = static_cast<std::byte>(both);
  }
  const uint32_t used = kPageTokens * row + 4 * head_dim;
  if (threadIdx.x < (16 - used % 16) % 16) section[used + threadIdx.x] = std::byte{0};
}

// One element of a section.
template <Coding C>
__device__ float decode_element(const std::byte* section, uint32_t head_dim, uint32_t token,
                                uint32_t c) {
  const uint32_t at = token * head_dim + c;
  if constexpr (C == Coding::kF32) {
    return reinterpret_cast<const float*>(section)[at];
  } else if constexpr (C == Coding::kBf16) {
    return bf16_value(reinterpret_cast<const uint16_t*>(section)[at]);
  } else if constexpr (C == Coding::kInt8 || C == Coding::kE4m3) {
    const auto bits = static_cast<uint8_t>(section[at]);
    const auto* scales = reinterpret_cast<const uint16_t*>(section + kPageTokens * head_dim);
    const float level =
        C == Coding::kE4m3 ? e4m3_value(bits) : static_cast<float>(static_cast<int8_t>(bits));
    return level * half_value(scales[token]);
  } else {
    const auto byte = static_cast<uint32_t>(section[at / 2]);
    const auto* scales = reinterpret_cast<const uint16_t*>(section + kPageTokens * (head_dim / 2));
    const uint32_t groups = kv::v4_groups(head_dim);
    const uint32_t g = C == Coding::kFourBitRows ? token * groups + c / kv::kV4Group : c;
    const uint32_t count = C == Coding::kFourBitRows ? kPageTokens * groups : head_dim;
    const uint32_t level = c % 2 == 0 ? byte & 0xfU : byte >> 4;
    return static_cast<float>(level) * half_value(scales[g]) + half_value(scales[count + g]);
  }
}

}  // namespace tandem::cuda
