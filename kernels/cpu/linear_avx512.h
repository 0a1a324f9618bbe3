#pragma once

#include <immintrin.h>

#include "kernels/cpu/kernels.h"

// Included by files compiled for AVX-512 only.
namespace tandem::cpu {
namespace {

// Weights come from memory once per step and are not looked at again before the next: fetch them into
// L1 some lines ahead of the hardware prefetcher, which stops at every 4 KiB page.
constexpr int64_t kStreamAhead = 2048;  // bytes
inline void prefetch_stream(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kStreamAhead, _MM_HINT_T0);
}

// float32 weights: 12 x 2 panels, as in linear_avx512bf16.cc.
struct F32Tile {
  using X = float;
  using W = float;
  static constexpr int kRows = 12;
  static constexpr int kPanels = 2;
  static constexpr int kStep = 1;
  static constexpr int kStreamRows = 4;

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t steps, bool add,
                  float* c, int64_t c_stride) {
    __m512 acc[R][P];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p)
        acc[r][p] = add ? _mm512_loadu_ps(c + r * c_stride + p * kPanel) : _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s) {
      __m512 weight[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        const float* at = w + p * w_stride + s * kPanel;
        if constexpr (P == 1) prefetch_stream(at);
        weight[p] = _mm512_loadu_ps(at);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512 one = _mm512_set1_ps(x[r * x_stride + s]);
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) acc[r][p] = _mm512_fmadd_ps(one, weight[p], acc[r][p]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) _mm512_storeu_ps(c + r * c_stride + p * kPanel, acc[r][p]);
  }
};

}  // namespace
}  // namespace tandem::cpu
