#pragma once

#include <cstdint>

#include "kernels/cuda/kv_codec.cuh"

// One head's row in the registers of a few neighbouring lanes, 16 channels each: two runs of eight,
// so that memory is read and written 16 bytes at a time. For head_dim divisible by 16.
namespace tandem::cuda {

constexpr uint32_t kRunChannels = 8;
constexpr uint32_t kLaneChannels = 2 * kRunChannels;

__host__ __device__ constexpr bool fits_lanes(uint32_t head_dim, uint32_t half) {
  return head_dim % kLaneChannels == 0 && half % kRunChannels == 0;
}
// Lanes that share a row; those past head_dim / 16 idle.
__host__ __device__ constexpr uint32_t lanes_of(uint32_t head_dim) {
  return head_dim <= 64 ? 4 : head_dim <= 128 ? 8 : 16;
}

// Where a lane's runs begin.
struct Place {
  uint32_t a;
  uint32_t b;
  bool live;
  bool turns;  // a and b are the two halves of channels that rotate together
};

// Of lane `t` of a row. The channels that do not turn follow the 2 * half that do.
__device__ __forceinline__ Place rotary_place(uint32_t t, uint32_t head_dim, uint32_t half) {
  const bool live = t < head_dim / kLaneChannels;
  const uint32_t turning = half / kRunChannels;
  if (t < turning) return {t * kRunChannels, half + t * kRunChannels, live, true};
  // t * 16 = 2 * half + (t - turning) * 16
  return {t * kLaneChannels, t * kLaneChannels + kRunChannels, live, false};
}
// Neighbouring lanes, neighbouring runs: whole sectors with every access.
__device__ __forceinline__ Place split_place(uint32_t t, uint32_t head_dim) {
  return {t * kRunChannels, head_dim / 2 + t * kRunChannels, t < head_dim / kLaneChannels, false};
}
// Sixteen neighbouring channels: two lanes make a group of kV4Group.
__device__ __forceinline__ Place straight_place(uint32_t t, uint32_t head_dim) {
  return {t * kLaneChannels, t * kLaneChannels + kRunChannels, t < head_dim / kLaneChannels, false};
}

struct LaneBits {
  uint4 a{};
  uint4 b{};
};

__device__ __forceinline__ LaneBits load_lane(const Bf16* row, const Place& at) {
  return {*reinterpret_cast<const uint4*>(row + at.a), *reinterpret_cast<const uint4*>(row + at.b)};
}
// Global memory, and by name: of a plain assignment the compiler may make four narrow stores.
__device__ __forceinline__ void store_lane(const LaneBits& bits, Bf16* row, const Place& at) {
  __stwb(reinterpret_cast<uint4*>(row + at.a), bits.a);
  __stwb(reinterpret_cast<uint4*>(row + at.b), bits.b);
}

__device__ __forceinline__ void unpack_pair(uint32_t two, float& low, float& high) {
  low = __uint_as_float(two << 16);
  high = __uint_as_float(two & 0xffff0000U);
}
__device__ __forceinline__ void unpack_run(const uint4& bits, float* x) {
  unpack_pair(bits.x, x[0], x[1]);
  unpack_pair(bits.y, x[2], x[3]);
  unpack_pair(bits.z, x[4], x[5]);
  unpack_pair(bits.w, x[6], x[7]);
}
__device__ __forceinline__ void unpack_lane(const LaneBits& bits, float (&x)[kLaneChannels]) {
  unpack_run(bits.a, x);
  unpack_run(bits.b, x + kRunChannels);
}

// Of results of arithmetic, whose NaNs all look alike on this hardware: then the conversion
// instruction gives to_bf16's bits.
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}
__device__ __forceinline__ uint4 pack_run(const float* x) {
  return {pack_two(x[0], x[1]), pack_two(x[2], x[3]), pack_two(x[4], x[5]), pack_two(x[6], x[7])};
}
__device__ __forceinline__ LaneBits pack_lane(const float (&x)[kLaneChannels]) {
  return {pack_run(x), pack_run(x + kRunChannels)};
}

// to_bf16 of values that came as bf16 changes one thing: signalling NaNs turn quiet.
__device__ __forceinline__ uint32_t quiet(uint32_t two) {
  if ((two & 0x7fffU) > 0x7f80U) two |= 0x40U;
  if ((two & 0x7fff0000U) > 0x7f800000U) two |= 0x400000U;
  return two;
}
__device__ __forceinline__ uint32_t top_magnitudes(uint32_t a, uint32_t b) {
  return __vmaxu2(a & 0x7fff7fffU, b & 0x7fff7fffU);
}
__device__ __forceinline__ void quiet(LaneBits& bits) {
  const uint32_t top =
      __vmaxu2(__vmaxu2(top_magnitudes(bits.a.x, bits.a.y), top_magnitudes(bits.a.z, bits.a.w)),
               __vmaxu2(top_magnitudes(bits.b.x, bits.b.y), top_magnitudes(bits.b.z, bits.b.w)));
  if ((top & 0xffffU) <= 0x7f80U && top <= 0x7f80ffffU) return;
  bits.a = {quiet(bits.a.x), quiet(bits.a.y), quiet(bits.a.z), quiet(bits.a.w)};
  bits.b = {quiet(bits.b.x), quiet(bits.b.y), quiet(bits.b.z), quiet(bits.b.w)};
}

// Norm and rotation give the bits of warp_rotate() (kv_rows.cuh): every operation is spelled.
__device__ __forceinline__ float run_squares(const float* x) {
  float squares = 0.0F;
#pragma unroll
  for (uint32_t i = 0; i < kRunChannels; ++i) squares = __fmaf_rn(x[i], x[i], squares);
  return squares;
}
__device__ __forceinline__ float norm_factor(float squares, uint32_t head_dim, float eps) {
  const float mean = __fdiv_rn(squares, static_cast<float>(head_dim));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// RMS norm of the row. Called by whole warps; idle lanes hold zeros.
template <uint32_t kLanes>
__device__ __forceinline__ void normalize_lane(float (&x)[kLaneChannels], const float* norm,
                                               float eps, uint32_t head_dim, const Place& at) {
  const float own = __fadd_rn(run_squares(x), run_squares(x + kRunChannels));
  const float squares = lanes_reduce(own, kLanes, [](float a, float b) { return __fadd_rn(a, b); });
  const float inverse = norm_factor(squares, head_dim, eps);
  if (!at.live) return;
#pragma unroll
  for (uint32_t i = 0; i < kLaneChannels; i += 4) {
    const uint32_t c = (i < kRunChannels ? at.a : at.b - kRunChannels) + i;
    const float4 weight = *reinterpret_cast<const float4*>(norm + c);
    x[i] = __fmul_rn(__fmul_rn(x[i], inverse), weight.x);
    x[i + 1] = __fmul_rn(__fmul_rn(x[i + 1], inverse), weight.y);
    x[i + 2] = __fmul_rn(__fmul_rn(x[i + 2], inverse), weight.z);
    x[i + 3] = __fmul_rn(__fmul_rn(x[i + 3], inverse), weight.w);
  }
}

// What turns a lane's two runs at one position.
struct Turn {
  float2 cos_sin[kRunChannels];
};
__device__ __forceinline__ Turn load_turn(const DeviceRope& rope, uint32_t position,
                                          const Place& at) {
  Turn turn{};
  if (!at.turns || !at.live) return turn;
  const auto* from = reinterpret_cast<const float4*>(
      rope.cos_sin + uint64_t{position} * (rope.rotary_dim / 2) + at.a);
#pragma unroll
  for (uint32_t i = 0; i < kRunChannels / 2; ++i) {
    const float4 two = __ldg(from + i);
    turn.cos_sin[2 * i] = {two.x, two.y};
    turn.cos_sin[2 * i + 1] = {two.z, two.w};
  }
  return turn;
}
__device__ __forceinline__ void turn_lane(float (&x)[kLaneChannels], const Turn& turn) {
#pragma unroll
  for (uint32_t i = 0; i < kRunChannels; ++i) {
    const float a = x[i];
    const float b = x[i + kRunChannels];
    const float2 cs = turn.cos_sin[i];
    x[i] = __fmaf_rn(a, cs.x, -__fmul_rn(b, cs.y));
    x[i + kRunChannels] = __fmaf_rn(b, cs.x, __fmul_rn(a, cs.y));
  }
}

}  // namespace tandem::cuda
