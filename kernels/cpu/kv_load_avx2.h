#pragma once

#include <immintrin.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/transpose_avx2.h"

// Decoding of KV pages; part of kv_avx2.cc.
namespace tandem::cpu {
namespace {

inline float half_at(const char* p, int64_t index) {
  uint16_t bits = 0;
  __builtin_memcpy(&bits, p + 2 * index, sizeof bits);
  return _cvtsh_ss(bits);
}
inline __m256 halves_at(const char* p, int64_t index) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * index)));
}
inline float bf16_at(const char* p, int64_t index) {
  uint16_t bits = 0;
  __builtin_memcpy(&bits, p + 2 * index, sizeof bits);
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

// Loads the same 32 bytes of tokens first .. first+7 (zeros from `valid` on) and transposes them:
// lane i of v[j] is word j of token first+i.
inline void gather_words(const char* rows, int64_t row_bytes, int64_t first, int64_t valid,
                         __m256i (&v)[8]) {
  for (int64_t i = 0; i < 8; ++i)
    v[i] =
        first + i < valid
            ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + (first + i) * row_bytes))
            : _mm256_setzero_si256();
  transpose8(v);
}

// One element at a time: channels that do not fill 32 bytes.
struct KeyPage {
  const char* section;
  int64_t head_dim;

  [[nodiscard]] float at(KvElement e, int64_t token, int64_t channel) const {
    const int64_t index = token * head_dim + channel;
    switch (e) {
      case KvElement::kF32: {
        float value = 0;
        __builtin_memcpy(&value, section + 4 * index, sizeof value);
        return value;
      }
      case KvElement::kBf16:
        return bf16_at(section, index);
      case KvElement::kInt8:
        return static_cast<float>(static_cast<int8_t>(section[index])) *
               half_at(section + kPageTokens * head_dim, token);
      case KvElement::kInt4: {
        const auto both = static_cast<uint8_t>(section[index / 2]);
        const char* scales = section + kPageTokens * head_dim / 2;
        return static_cast<float>(channel % 2 == 0 ? both & 0xf : both >> 4) *
                   half_at(scales, channel) +
               half_at(scales + 2 * head_dim, channel);
      }
      case KvElement::kFp8:
        break;  // kept to the reference
    }
    return 0;
  }
};

inline void key_words(KvElement e, const KeyPage& page, int64_t channel, int64_t first,
                      const __m256i (&v)[8], float* out) {
  const auto put = [&](int64_t c, __m256 x) { _mm256_storeu_ps(out + c * kPageTokens + first, x); };
  switch (e) {
    case KvElement::kF32:
      for (int64_t j = 0; j < 8; ++j) put(channel + j, _mm256_castsi256_ps(v[j]));
      return;
    case KvElement::kBf16: {
      const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
      for (int64_t j = 0; j < 8; ++j) {
        put(channel + 2 * j, _mm256_castsi256_ps(_mm256_slli_epi32(v[j], 16)));
        put(channel + 2 * j + 1, _mm256_castsi256_ps(_mm256_and_si256(v[j], upper)));
      }
      return;
    }
    case KvElement::kInt8: {
      const __m256 scale = halves_at(page.section + kPageTokens * page.head_dim, first);
      for (int64_t j = 0; j < 8; ++j)
        for (int b = 0; b < 4; ++b) {
          const __m256i q = _mm256_srai_epi32(_mm256_slli_epi32(v[j], 24 - 8 * b), 24);
          put(channel + 4 * j + b, _mm256_mul_ps(_mm256_cvtepi32_ps(q), scale));
        }
      return;
    }
    case KvElement::kInt4: {
      const char* scales = page.section + kPageTokens * page.head_dim / 2;
      const __m256i nibble = _mm256_set1_epi32(0xf);
      for (int64_t j = 0; j < 8; ++j)
        for (int b = 0; b < 8; ++b) {
          const int64_t c = channel + 8 * j + b;
          const __m256i q = _mm256_and_si256(_mm256_srli_epi32(v[j], 4 * b), nibble);
          put(c, _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(half_at(scales, c)),
                                 _mm256_set1_ps(half_at(scales + 2 * page.head_dim, c))));
        }
      return;
    }
    case KvElement::kFp8:
      return;
  }
}

// Channels in 32 bytes of a row.
inline int64_t channels_per_load(KvElement e) {
  switch (e) {
    case KvElement::kF32:
      return 8;
    case KvElement::kBf16:
      return 16;
    case KvElement::kInt8:
      return 32;
    case KvElement::kInt4:
      return 64;
    case KvElement::kFp8:
      break;
  }
  return 0;
}

// Sixteen bytes of scales that belong to tokens beyond `valid`, and four-bit minima, may be
// anything: what is not a number times zero is not zero.
inline void clear_tokens(int64_t head_dim, int64_t valid, float* out) {
  if (valid >= kPageTokens) return;
  for (int64_t c = 0; c < head_dim; ++c)
    for (int64_t t = valid; t < kPageTokens; ++t) out[c * kPageTokens + t] = 0;
}

void load_keys(KvElement e, const void* section, int64_t head_dim, int64_t valid, float* out) {
  // A format for cards with tensor cores; on CPUs int8 is as small and more exact.
  if (e == KvElement::kFp8) return kKvReference.load_keys(e, section, head_dim, valid, out);
  const KeyPage page{static_cast<const char*>(section), head_dim};
  const int64_t step = channels_per_load(e);
  const int64_t row_bytes = head_dim * 32 / step;
  int64_t c = 0;
  for (; c + step <= head_dim; c += step)
    for (int64_t first = 0; first < kPageTokens; first += 8) {
      __m256i v[8];
      gather_words(page.section + c * 32 / step, row_bytes, first, valid, v);
      key_words(e, page, c, first, v, out);
    }
  for (; c < head_dim; ++c)
    for (int64_t t = 0; t < kPageTokens; ++t)
      out[c * kPageTokens + t] = t < valid ? page.at(e, t, c) : 0.0F;
  clear_tokens(head_dim, valid, out);
}

// ---- values: rows stay rows ----

inline void value_row_int8(const char* q, float scale, int64_t n, float* out) {
  int64_t c = 0;
  for (; c + 8 <= n; c += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + c));
    const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    _mm256_storeu_ps(out + c, _mm256_mul_ps(x, _mm256_set1_ps(scale)));
  }
  for (; c < n; ++c) out[c] = static_cast<float>(static_cast<int8_t>(q[c])) * scale;
}

inline void value_row_bf16(const char* p, int64_t n, float* out) {
  int64_t c = 0;
  for (; c + 8 <= n; c += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * c));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
    _mm256_storeu_ps(out + c, _mm256_castsi256_ps(wide));
  }
  for (; c < n; ++c) out[c] = bf16_at(p, c);
}

// One group of up to kValueGroup channels.
inline void value_group_int4(const char* packed, float scale, float minimum, int64_t n,
                             float* out) {
  if (n < kValueGroup) {
    for (int64_t c = 0; c < n; ++c) {
      const auto both = static_cast<uint8_t>(packed[c / 2]);
      out[c] = static_cast<float>(c % 2 == 0 ? both & 0xf : both >> 4) * scale + minimum;
    }
    return;
  }
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m128i nibble = _mm_set1_epi8(0xf);
  const __m128i low = _mm_and_si128(bytes, nibble);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  const __m128i q[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
  for (int i = 0; i < 4; ++i) {
    const __m128i eight = i % 2 == 0 ? q[i / 2] : _mm_srli_si128(q[i / 2], 8);
    const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
    _mm256_storeu_ps(out + 8 * i,
                     _mm256_fmadd_ps(x, _mm256_set1_ps(scale), _mm256_set1_ps(minimum)));
  }
}

inline void value_row_int4(const char* section, int64_t token, int64_t n, float* out) {
  const int64_t groups = (n + kValueGroup - 1) / kValueGroup;
  const char* packed = section + token * n / 2;
  const char* scales = section + kPageTokens * n / 2;
  const char* minima = scales + 2 * kPageTokens * groups;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t c = g * kValueGroup;
    value_group_int4(packed + c / 2, half_at(scales, token * groups + g),
                     half_at(minima, token * groups + g), n - c < kValueGroup ? n - c : kValueGroup,
                     out + c);
  }
}

void load_values(KvElement e, const void* section, int64_t head_dim, int64_t valid, float* out) {
  if (e == KvElement::kFp8) return kKvReference.load_values(e, section, head_dim, valid, out);
  const char* p = static_cast<const char*>(section);
  const int64_t stride = value_stride(head_dim);
  for (int64_t t = 0; t < kPageTokens; ++t, out += stride) {
    int64_t filled = 0;
    if (t < valid) {
      filled = head_dim;
      switch (e) {
        case KvElement::kF32:
          __builtin_memcpy(out, p + 4 * t * head_dim, static_cast<size_t>(4 * head_dim));
          break;
        case KvElement::kBf16:
          value_row_bf16(p + 2 * t * head_dim, head_dim, out);
          break;
        case KvElement::kInt8:
          value_row_int8(p + t * head_dim, half_at(p + kPageTokens * head_dim, t), head_dim, out);
          break;
        case KvElement::kInt4:
          value_row_int4(p, t, head_dim, out);
          break;
        case KvElement::kFp8:
          break;
      }
    }
    for (int64_t c = filled; c < stride; ++c) out[c] = 0;
  }
}

}  // namespace
}  // namespace tandem::cpu
