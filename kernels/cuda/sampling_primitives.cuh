#pragma once

#include <cooperative_groups.h>

#include <cfloat>
#include <cstdint>

// Arithmetic and reductions of the sampling kernel (sampling.cu).
namespace tandem::cuda::sampling {

using u64 = unsigned long long;
namespace cg = cooperative_groups;

// Two blocks of 512 fit an SM beside each other with 64 registers a thread (H200).
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr float kMinLogprob = -9999.0F;

__device__ __forceinline__ float impossible() { return __uint_as_float(0xff800000u); }

// NaN becomes impossible, +infinity the largest float.
__device__ __forceinline__ float sanitized(float x) {
  return fminf(fmaxf(x, impossible()), FLT_MAX);
}

// A monotone unsigned image of a sanitized float; both zeros are one value.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0F));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
// Orders as engine::better(): higher logit first, then the lower id. Never 0.
__device__ __forceinline__ u64 rank_of(float x, uint32_t id) {
  return (static_cast<u64>(key_of(x)) << 32) | (0xffffffffu - id);
}
__device__ __forceinline__ uint32_t id_of(u64 rank) {
  return 0xffffffffu - static_cast<uint32_t>(rank);
}
__device__ __forceinline__ float logit_of(u64 rank) {
  return float_of(static_cast<uint32_t>(rank >> 32));
}

// The CPU sampler's exp (logit_scan.cc) operation by operation, never fused: the same bits.
__device__ __forceinline__ float exp_negative(float x) {
  const float clamped = fmaxf(x, -87.0F);
  const float n = __fadd_rn(__fadd_rn(__fmul_rn(clamped, 1.44269504F), 12582912.0F), -12582912.0F);
  const float r =
      __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.693359375F)), __fmul_rn(n, -2.12194440e-4F));
  float p = 1.0F / 5040;
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 720);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 120);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 24);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 6);
  p = __fadd_rn(__fmul_rn(p, r), 0.5F);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F);
  const float e = __fmul_rn(p, __int_as_float((__float2int_rz(n) + 127) << 23));
  return x < -87.0F ? 0.0F : e;
}

// Probability mass against the best token's 1, in units of 2^-44: integers add up to the same sum
// in any order, and 2^18 tokens stay below 2^63. Floats of 2^-20 and above are exact in it.
inline constexpr float kMassUnit = 17592186044416.0F;
__device__ __forceinline__ u64 mass_of(float x, float top, float inverse) {
  const float depth = __fmul_rn(__fsub_rn(x, top), inverse);
  if (!(depth >= -31.25F)) return 0;  // less than half a unit
  return __float2ull_rn(exp_negative(depth) * kMassUnit);
}

// One 32-bit word of Philox4x32-10 for (seed, position), as engine::philox().
__device__ __forceinline__ uint32_t philox(u64 seed, u64 position) {
  uint32_t c0 = static_cast<uint32_t>(position);
  uint32_t c1 = static_cast<uint32_t>(position >> 32);
  uint32_t c2 = 0;
  uint32_t c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 a = u64{0xD2511F53u} * c0;
    const u64 b = u64{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

__device__ __forceinline__ u64 warp_max(u64 v) {
  for (int o = 16; o > 0; o >>= 1) {
    const u64 other = __shfl_xor_sync(kAll, v, o);
    v = other > v ? other : v;
  }
  return v;
}
__device__ __forceinline__ u64 warp_sum(u64 v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(kAll, v, o);
  return v;
}
__device__ __forceinline__ u64 warp_inclusive(u64 v, uint32_t lane) {
  for (int o = 1; o < 32; o <<= 1) {
    const u64 other = __shfl_up_sync(kAll, v, o);
    if (lane >= static_cast<uint32_t>(o)) v += other;
  }
  return v;
}

__device__ __forceinline__ bool better_or_equal(float x, uint32_t id, float cut, uint32_t cut_id) {
  return x > cut || (x == cut && id <= cut_id);
}

}  // namespace tandem::cuda::sampling
