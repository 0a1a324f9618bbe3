#pragma once

#include <immintrin.h>

#include <cstdint>

// 16 floats. Everything is local to the including file, which is compiled for AVX-512 F, BW, DQ,
// VL.
namespace tandem::cpu {
namespace {

using Vec = __m512;
constexpr int64_t kWidth = 16;
// Accumulators of an attention tile: 16 for 8 rows and 2 vectors, of 32 registers.
constexpr int kTileRows = 8;
constexpr int kValueVecs = 2;
constexpr int kScoreVecs = 2;

inline __mmask16 lanes(int64_t n) { return static_cast<__mmask16>((1U << n) - 1U); }

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store_part(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, lanes(n), v); }
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline Vec round_even(Vec a) { return _mm512_roundscale_ps(a, 8); }
// a < b ? yes : no
inline Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
// x * 2^n, n integral and within the exponents of normal numbers.
inline Vec scale_exponent(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
// Lane numbers from `base` on.
inline Vec iota(float base) {
  return _mm512_add_ps(_mm512_set1_ps(base),
                       _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
inline float reduce_add(Vec v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  q = _mm_add_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}
inline float reduce_max(Vec v) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  q = _mm_max_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}
// To bf16, nearest even, NaN quiet; n <= 16 of them.
inline void store_bf16(uint16_t* p, Vec v, int64_t n) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u,
                           _mm512_set1_epi32(0x400000));
  _mm256_mask_storeu_epi16(p, lanes(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}

}  // namespace
}  // namespace tandem::cpu
