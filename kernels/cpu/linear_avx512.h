#pragma once

#include <immintrin.h>

#include "kernels/cpu/kernels.h"

// Included by files compiled for AVX-512 only.
namespace tandem::cpu {
namespace {

// Panels of a register tile. With few rows weights come from memory, one stream a panel, and what
// counts is how many streams the hardware prefetcher is given: decode of SmolLM2 with 2 threads of
// Zen 4 (read stream 47 GB/s) took 7.3 ms with two, 6.6 with four, 6.0 with eight; software
// prefetching cost 0.6 ms there. 24 accumulators fit otherwise.
constexpr int panels_of(int rows) { return rows == 1 ? 8 : rows <= 4 ? 4 : 2; }

// float32 weights: 12 x 2 panels, as in linear_avx512bf16.cc.
struct F32Tile {
  using X = float;
  using W = float;
  static constexpr int kRows = 12;
  static constexpr int kStep = 1;
  static constexpr int panels(int rows) { return panels_of(rows); }

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t steps,
                  bool add, float* c, int64_t c_stride) {
    __m512 acc[R][P];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        acc[r][p] = add ? _mm512_loadu_ps(c + r * c_stride + p * kPanel) : _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s) {
      __m512 weight[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const float* at = w + p * w_stride + s * kPanel;
        weight[p] = _mm512_loadu_ps(at);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512 one = _mm512_set1_ps(x[r * x_stride + s]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[r][p] = _mm512_fmadd_ps(one, weight[p], acc[r][p]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) _mm512_storeu_ps(c + r * c_stride + p * kPanel, acc[r][p]);
  }
};

// bf16 weights and float activations: a packed step holds two inputs of 16 outputs; a shift and a
// mask make two float vectors of it.
struct ExpandTile {
  using X = float;
  using W = uint16_t;
  static constexpr int kRows = 12;
  static constexpr int kStep = 2;
  static constexpr int panels(int rows) { return panels_of(rows); }

  static void expand(const W* w, int64_t steps, float* out) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    for (int64_t s = 0; s < steps; ++s, w += 2 * kPanel, out += 2 * kPanel) {
      const __m512i both = _mm512_loadu_si512(w);
      _mm512_store_ps(out, _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
      _mm512_store_ps(out + kPanel, _mm512_castsi512_ps(_mm512_and_si512(both, upper)));
    }
  }

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t steps,
                  bool add, float* c, int64_t c_stride) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    __m512 acc[R][P];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        acc[r][p] = add ? _mm512_loadu_ps(c + r * c_stride + p * kPanel) : _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const uint16_t* at = w + p * w_stride + s * 2 * kPanel;
        const __m512i both = _mm512_loadu_si512(at);
        const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const float* xs = x + r * x_stride + s * 2;
          acc[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(xs[0]), even, acc[r][p]);
          acc[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(xs[1]), odd, acc[r][p]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) _mm512_storeu_ps(c + r * c_stride + p * kPanel, acc[r][p]);
  }
};

}  // namespace
}  // namespace tandem::cpu
