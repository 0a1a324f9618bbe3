#include <immintrin.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/transpose_avx2.h"

namespace tandem::cpu {
namespace {

// 8 floats to bf16 in the low halves of 32-bit lanes: nearest even, NaN quiet.
inline __m256i bf16_lanes(__m256 v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}

// 16 floats of one row as 8 lanes of two neighbouring bf16.
inline __m256i bf16_pairs(const float* p) {
  const __m256i a = bf16_lanes(_mm256_loadu_ps(p));
  const __m256i b = bf16_lanes(_mm256_loadu_ps(p + 8));
  // packus works within 128-bit halves: a0-3 b0-3 | a4-7 b4-7, as 64-bit pieces 0 2 1 3 of the row.
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

inline uint16_t bf16_bits(float x) {
  const __m128i v = _mm256_castsi256_si128(bf16_lanes(_mm256_set1_ps(x)));
  return static_cast<uint16_t>(_mm_cvtsi128_si32(v));
}

// Rows `first` .. `first`+7 of the panel; those from `count` on are zero.
void pack_f32_half(const float* rows, int64_t stride, int64_t count, int64_t in, int64_t first,
                   float* panel) {
  int64_t k = 0;
  for (; k + 8 <= in; k += 8) {
    __m256i v[8];
    for (int64_t i = 0; i < 8; ++i)
      v[i] = first + i < count
                 ? _mm256_castps_si256(_mm256_loadu_ps(rows + (first + i) * stride + k))
                 : _mm256_setzero_si256();
    transpose8(v);
    for (int64_t i = 0; i < 8; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + (k + i) * kPanel + first), v[i]);
  }
  for (; k < in; ++k)
    for (int64_t i = first; i < first + 8; ++i)
      panel[k * kPanel + i] = i < count ? rows[i * stride + k] : 0.0F;
}

void pack_bf16_half(const float* rows, int64_t stride, int64_t count, int64_t in, int64_t first,
                    uint16_t* panel) {
  int64_t k = 0;
  for (; k + 16 <= in; k += 16) {
    __m256i v[8];
    for (int64_t i = 0; i < 8; ++i)
      v[i] =
          first + i < count ? bf16_pairs(rows + (first + i) * stride + k) : _mm256_setzero_si256();
    transpose8(v);
    for (int64_t i = 0; i < 8; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + (k + 2 * i) * kPanel + 2 * first),
                          v[i]);
  }
  for (; k < (in + 1) / 2 * 2; ++k)
    for (int64_t i = first; i < first + 8; ++i)
      panel[k / 2 * 2 * kPanel + i * 2 + k % 2] =
          i < count && k < in ? bf16_bits(rows[i * stride + k]) : uint16_t{0};
}

void pack_f32(const float* rows, int64_t stride, int64_t count, int64_t in, float* panel) {
  pack_f32_half(rows, stride, count, in, 0, panel);
  pack_f32_half(rows, stride, count, in, 8, panel);
}

void pack_bf16(const float* rows, int64_t stride, int64_t count, int64_t in, uint16_t* panel) {
  pack_bf16_half(rows, stride, count, in, 0, panel);
  pack_bf16_half(rows, stride, count, in, 8, panel);
}

// One element per cache line: bound by memory, whatever the instructions.
void unpack_f32(const float* panel, int64_t lane, int64_t in, float* out) {
  for (int64_t k = 0; k < in; ++k) out[k] = panel[k * kPanel + lane];
}

void unpack_bf16(const uint16_t* panel, int64_t lane, int64_t in, float* out) {
  for (int64_t k = 0; k < in; ++k) {
    const uint32_t bits = uint32_t{panel[k / 2 * 2 * kPanel + lane * 2 + k % 2]} << 16;
    __builtin_memcpy(out + k, &bits, sizeof bits);
  }
}

}  // namespace

constexpr PackKernels kPackAvx2{pack_f32, pack_bf16, unpack_f32, unpack_bf16};

}  // namespace tandem::cpu
