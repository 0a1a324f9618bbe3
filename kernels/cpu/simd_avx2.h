#pragma once

#include <immintrin.h>

#include <cstdint>

// 8 floats. Everything is local to the including file, which is compiled for AVX2, FMA and F16C.
namespace tandem::cpu {
namespace {

using Vec = __m256;
constexpr int64_t kWidth = 8;
// Accumulators of an attention tile: 8 for 4 rows and 2 vectors, of 16 registers.
constexpr int kTileRows = 4;
constexpr int kValueVecs = 2;
constexpr int kScoreVecs = 2;

inline __m256i lanes(int64_t n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
}

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, lanes(n)); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline void store_part(float* p, Vec v, int64_t n) { _mm256_maskstore_ps(p, lanes(n), v); }
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec set1(float x) { return _mm256_set1_ps(x); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
inline Vec round_even(Vec a) { return _mm256_round_ps(a, 8); }
// a < b ? yes : no
inline Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// x * 2^n, n integral and within the exponents of normal numbers.
inline Vec scale_exponent(Vec x, Vec n) {
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), bits));
}
// Lane numbers from `base` on.
inline Vec iota(float base) {
  return _mm256_add_ps(_mm256_set1_ps(base), _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7));
}
inline float reduce_add(Vec v) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  q = _mm_add_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}
inline float reduce_max(Vec v) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  q = _mm_max_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}
// To bf16, nearest even, NaN quiet; n <= 8 of them.
inline void store_bf16(uint16_t* p, Vec v, int64_t n) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  r = _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
  const __m256i packed = _mm256_packus_epi32(r, r);
  const __m128i out =
      _mm_unpacklo_epi64(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  if (n == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), out);
    return;
  }
  uint16_t all[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), out);
  for (int64_t i = 0; i < n; ++i) p[i] = all[i];
}

}  // namespace
}  // namespace tandem::cpu
