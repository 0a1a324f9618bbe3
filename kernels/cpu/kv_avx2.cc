#include <immintrin.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/kv_load_avx2.h"

// Encoders follow the rules of common/kv/codec.h operation by operation (no contraction into fused
// multiply-adds but the one it names), so the bytes are the same. Vectors run over the channels.
namespace tandem::cpu {
namespace {

constexpr float kLargest = 65504.0F;
constexpr float kUnits = 960.0F;
constexpr float kMinAmplitude = 0x1p-24F;
constexpr float kMinRange = 0x1p-20F;
struct Candidate {
  float offset;
  float step;
};
constexpr Candidate kCandidates[] = {{0, 64}, {0, 62}, {30, 62}, {15, 62}, {15, 63}, {0, 63}};

inline __m256 set1(float x) { return _mm256_set1_ps(x); }
inline __m256i lanes(int64_t n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
}
inline __m256 load_lanes(const float* p, int64_t n) {
  return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes(n));
}
inline __m256 clean(__m256 x) {
  const __m256 number = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  const __m256 clamped = _mm256_min_ps(_mm256_max_ps(number, set1(-kLargest)), set1(kLargest));
  return _mm256_add_ps(clamped, _mm256_setzero_ps());
}
inline __m256 rint(__m256 x) { return _mm256_round_ps(x, 8); }
inline __m256 clamp(__m256 x, float low, float high) {
  return _mm256_min_ps(_mm256_max_ps(x, set1(low)), set1(high));
}
inline float highest(__m256 v) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline float lowest(__m256 v) {
  __m128 q = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_min_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_min_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline float total(__m256 v) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline uint16_t to_half(float x) {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)));
}
inline void put_half(char* p, int64_t index, uint16_t bits) {
  __builtin_memcpy(p + 2 * index, &bits, sizeof bits);
}

void store_row_bf16(const float* row, int64_t n, char* out) {
  for (int64_t c = 0; c < n; c += 8) {
    const __m256 v = load_lanes(row + c, n - c);
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    const __m128i eight = _mm256_castsi256_si128(packed);
    if (n - c >= 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * c), eight);
    else
      __builtin_memcpy(out + 2 * c, &eight, static_cast<size_t>(2 * (n - c)));
  }
}

void store_row_int8(const float* row, int64_t n, int64_t token, char* section) {
  __m256 most = _mm256_setzero_ps();
  const __m256 sign = set1(-0.0F);
  for (int64_t c = 0; c < n; c += 8)
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, clean(load_lanes(row + c, n - c))));
  const float amplitude = highest(most);
  char* q = section + token * n;
  char* scales = section + kPageTokens * n;
  if (amplitude < kMinAmplitude) {
    __builtin_memset(q, 0, static_cast<size_t>(n));
    return put_half(scales, token, 0);
  }
  uint16_t h = to_half(amplitude * (1.0F / 127.0F));
  if (_cvtsh_ss(h) * 127.0F < amplitude) ++h;
  const __m256 inverse = set1(1.0F / _cvtsh_ss(h));
  for (int64_t c = 0; c < n; c += 8) {
    const __m256 x = clean(load_lanes(row + c, n - c));
    const __m256 level = clamp(rint(_mm256_mul_ps(x, inverse)), -127, 127);
    const __m256i wide = _mm256_cvtps_epi32(level);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    const __m128i eight = _mm_packs_epi16(words, words);
    if (n - c >= 8)
      _mm_storel_epi64(reinterpret_cast<__m128i*>(q + c), eight);
    else
      __builtin_memcpy(q + c, &eight, static_cast<size_t>(n - c));
  }
  put_half(scales, token, h);
}

// One group of n <= 32 values of one token.
void store_group_int4(const float* x, int64_t n, char* packed, uint16_t* scale, uint16_t* minimum) {
  constexpr int kVecs = kValueGroup / 8;
  __m256 v[kVecs];
  __m256 inside[kVecs];  // lanes that hold a value
  __m256 low = set1(__builtin_inff());
  __m256 high = set1(-__builtin_inff());
  for (int i = 0; i < kVecs; ++i) {
    const int64_t left = n - 8 * i;
    inside[i] = _mm256_castsi256_ps(lanes(left));
    v[i] = left > 0 ? clean(load_lanes(x + 8 * i, left)) : _mm256_setzero_ps();
    low = _mm256_blendv_ps(low, _mm256_min_ps(low, v[i]), inside[i]);
    high = _mm256_blendv_ps(high, _mm256_max_ps(high, v[i]), inside[i]);
  }
  const float lo = lowest(low);
  const float range = highest(high) - lo;
  if (range < kMinRange) {
    __builtin_memset(packed, 0, static_cast<size_t>(n / 2));
    *scale = 0;
    *minimum = to_half(lo);
    return;
  }
  const float to_units = kUnits / range;
  __m256 u[kVecs];
  for (int i = 0; i < kVecs; ++i)
    u[i] = rint(_mm256_mul_ps(_mm256_sub_ps(v[i], set1(lo)), set1(to_units)));
  Candidate best = kCandidates[0];
  float best_cost = __builtin_inff();
  for (const Candidate& c : kCandidates) {
    __m256 cost = _mm256_setzero_ps();
    for (int i = 0; i < kVecs; ++i) {
      const __m256 d = _mm256_sub_ps(u[i], set1(c.offset));
      const __m256 t = clamp(rint(_mm256_mul_ps(d, set1(1.0F / c.step))), 0, 15);
      const __m256 e = _mm256_and_ps(_mm256_sub_ps(d, _mm256_mul_ps(t, set1(c.step))), inside[i]);
      cost = _mm256_add_ps(cost, _mm256_mul_ps(e, e));
    }
    const float sum = total(cost);
    if (sum < best_cost) {
      best_cost = sum;
      best = c;
    }
  }
  const float unit = range / kUnits;
  *scale = to_half(best.step * unit);
  *minimum = to_half(
      _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(best.offset), _mm_set_ss(unit), _mm_set_ss(lo))));
  const __m256 from = set1(_cvtsh_ss(*minimum));
  const __m256 inverse = set1(1.0F / _cvtsh_ss(*scale));
  uint8_t levels[kValueGroup];
  for (int i = 0; i < kVecs; ++i) {
    const __m256 q = clamp(rint(_mm256_mul_ps(_mm256_sub_ps(v[i], from), inverse)), 0, 15);
    const __m256i wide = _mm256_cvtps_epi32(q);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(levels + 8 * i), _mm_packus_epi16(words, words));
  }
  for (int64_t i = 0; i < n / 2; ++i)
    packed[i] = static_cast<char>(levels[2 * i] | (levels[2 * i + 1] << 4));
}

void store_row_int4(const float* row, int64_t n, int64_t token, char* section) {
  const int64_t groups = (n + kValueGroup - 1) / kValueGroup;
  char* packed = section + token * (n / 2);
  char* scales = section + kPageTokens * (n / 2);
  char* minima = scales + 2 * kPageTokens * groups;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t c = g * kValueGroup;
    uint16_t scale = 0;
    uint16_t minimum = 0;
    store_group_int4(row + c, n - c < kValueGroup ? n - c : kValueGroup, packed + c / 2, &scale,
                     &minimum);
    put_half(scales, token * groups + g, scale);
    put_half(minima, token * groups + g, minimum);
  }
}

// Eight channels of a page at once, one lane each: levels, scales and minima as in
// store_group_int4.
struct ChannelFit {
  __m256i levels[kPageTokens];
  __m128i scales;  // 8 halves
  __m128i minima;
};

void fit_channels(const __m256 (&x)[kPageTokens], ChannelFit& fit) {
  __m256 lo = x[0];
  __m256 high = x[0];
  for (int t = 1; t < kPageTokens; ++t) {
    lo = _mm256_min_ps(lo, x[t]);
    high = _mm256_max_ps(high, x[t]);
  }
  const __m256 range = _mm256_sub_ps(high, lo);
  const __m256 flat = _mm256_cmp_ps(range, set1(kMinRange), _CMP_LT_OQ);
  const __m256 divisor = _mm256_blendv_ps(range, set1(1), flat);
  const __m256 to_units = _mm256_div_ps(set1(kUnits), divisor);
  __m256 u[kPageTokens];
  for (int t = 0; t < kPageTokens; ++t)
    u[t] = rint(_mm256_mul_ps(_mm256_sub_ps(x[t], lo), to_units));
  __m256 best_cost = set1(__builtin_inff());
  __m256 offset = set1(kCandidates[0].offset);
  __m256 step = set1(kCandidates[0].step);
  for (const Candidate& c : kCandidates) {
    __m256 cost = _mm256_setzero_ps();
    for (int t = 0; t < kPageTokens; ++t) {
      const __m256 d = _mm256_sub_ps(u[t], set1(c.offset));
      const __m256 level = clamp(rint(_mm256_mul_ps(d, set1(1.0F / c.step))), 0, 15);
      const __m256 e = _mm256_sub_ps(d, _mm256_mul_ps(level, set1(c.step)));
      cost = _mm256_add_ps(cost, _mm256_mul_ps(e, e));
    }
    const __m256 better = _mm256_cmp_ps(cost, best_cost, _CMP_LT_OQ);
    best_cost = _mm256_blendv_ps(best_cost, cost, better);
    offset = _mm256_blendv_ps(offset, set1(c.offset), better);
    step = _mm256_blendv_ps(step, set1(c.step), better);
  }
  const __m256 unit = _mm256_div_ps(range, set1(kUnits));
  const __m256 minimum = _mm256_blendv_ps(_mm256_fmadd_ps(offset, unit, lo), lo, flat);
  const __m256 scale = _mm256_andnot_ps(flat, _mm256_mul_ps(step, unit));
  fit.scales = _mm256_cvtps_ph(scale, 0);
  fit.minima = _mm256_cvtps_ph(minimum, 0);
  const __m256 from = _mm256_cvtph_ps(fit.minima);
  const __m256 by = _mm256_blendv_ps(_mm256_cvtph_ps(fit.scales), set1(1), flat);
  const __m256 inverse = _mm256_div_ps(set1(1), by);
  for (int t = 0; t < kPageTokens; ++t) {
    const __m256 q = clamp(rint(_mm256_mul_ps(_mm256_sub_ps(x[t], from), inverse)), 0, 15);
    fit.levels[t] = _mm256_cvtps_epi32(_mm256_andnot_ps(flat, q));
  }
}

void store_keys_int4(const float* rows, int64_t stride, int64_t head_dim, void* section) {
  char* packed = static_cast<char*>(section);
  char* scales = packed + kPageTokens * (head_dim / 2);
  char* minima = scales + 2 * head_dim;
  for (int64_t c = 0; c < head_dim; c += 8) {
    const int64_t count = head_dim - c < 8 ? head_dim - c : 8;
    __m256 x[kPageTokens];
    for (int64_t t = 0; t < kPageTokens; ++t)
      x[t] = clean(load_lanes(rows + t * stride + c, count));
    ChannelFit fit;
    fit_channels(x, fit);
    for (int64_t t = 0; t < kPageTokens; ++t) {
      // Neighbouring channels meet in the low byte of their 64 bits.
      const __m256i pairs = _mm256_or_si256(fit.levels[t], _mm256_srli_epi64(fit.levels[t], 28));
      uint64_t bytes[4];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), pairs);
      for (int64_t i = 0; i < count / 2; ++i)
        packed[t * (head_dim / 2) + c / 2 + i] = static_cast<char>(bytes[i] & 0xff);
    }
    uint16_t halves[8];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), fit.scales);
    __builtin_memcpy(scales + 2 * c, halves, static_cast<size_t>(2 * count));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), fit.minima);
    __builtin_memcpy(minima + 2 * c, halves, static_cast<size_t>(2 * count));
  }
  char* end = minima + 2 * head_dim;
  const int64_t used = end - packed;
  __builtin_memset(end, 0, static_cast<size_t>((used + 15) / 16 * 16 - used));
}

void store_key(KvElement e, const float* row, int64_t head_dim, int64_t token, void* section) {
  char* p = static_cast<char*>(section);
  switch (e) {
    case KvElement::kF32:
      __builtin_memcpy(p + 4 * token * head_dim, row, static_cast<size_t>(4 * head_dim));
      return;
    case KvElement::kBf16:
      return store_row_bf16(row, head_dim, p + 2 * token * head_dim);
    case KvElement::kInt8:
      return store_row_int8(row, head_dim, token, p);
    case KvElement::kInt4:
      return;  // store_keys_int4
    case KvElement::kFp8:
      return kKvReference.store_key(e, row, head_dim, token, section);
  }
}

void store_value(KvElement e, const float* row, int64_t head_dim, int64_t token, void* section) {
  if (e == KvElement::kInt4)
    store_row_int4(row, head_dim, token, static_cast<char*>(section));
  else
    store_key(e, row, head_dim, token, section);
}

}  // namespace

constexpr KvKernels kKvAvx2{load_keys, load_values, store_key, store_value, store_keys_int4};

}  // namespace tandem::cpu
