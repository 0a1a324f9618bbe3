#include <immintrin.h>

#include "kernels/cpu/linear_tiles.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kStreamAhead = 2048;  // bytes; see linear_avx512.h
constexpr int kHalf = 8;                // a panel is two vectors

// 6 rows x 1 panel: 12 accumulators, two weights, a broadcast and a spare of the 16 registers.
struct F32Tile {
  using X = float;
  using W = float;
  static constexpr int kRows = 6;
  static constexpr int kPanels = 1;
  static constexpr int kStep = 1;
  static constexpr int kStreamRows = 6;

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t, int64_t steps, bool add,
                  float* c, int64_t c_stride) {
    __m256 low[R];
    __m256 high[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      low[r] = add ? _mm256_loadu_ps(c + r * c_stride) : _mm256_setzero_ps();
      high[r] = add ? _mm256_loadu_ps(c + r * c_stride + kHalf) : _mm256_setzero_ps();
    }
    for (int64_t s = 0; s < steps; ++s, w += kPanel) {
      _mm_prefetch(reinterpret_cast<const char*>(w) + kStreamAhead, _MM_HINT_T0);
      const __m256 w0 = _mm256_loadu_ps(w);
      const __m256 w1 = _mm256_loadu_ps(w + kHalf);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 one = _mm256_broadcast_ss(x + r * x_stride + s);
        low[r] = _mm256_fmadd_ps(one, w0, low[r]);
        high[r] = _mm256_fmadd_ps(one, w1, high[r]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      _mm256_storeu_ps(c + r * c_stride, low[r]);
      _mm256_storeu_ps(c + r * c_stride + kHalf, high[r]);
    }
  }
};

// A packed step holds two inputs of 16 outputs side by side; a shift and a mask make two float
// vectors of each half.
struct Bf16Tile {
  using X = float;
  using W = uint16_t;
  static constexpr int kRows = 6;
  static constexpr int kPanels = 1;
  static constexpr int kStep = 2;
  static constexpr int kStreamRows = 6;

  static void expand(const W* w, int64_t steps, float* out) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    for (int64_t s = 0; s < steps; ++s, w += 2 * kPanel, out += 2 * kPanel)
      for (int h = 0; h < 2; ++h) {
        const auto* at = reinterpret_cast<const __m256i*>(w + h * 2 * kHalf);
        const __m256i both = _mm256_loadu_si256(at);
        _mm256_store_ps(out + h * kHalf, _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)));
        _mm256_store_ps(out + kPanel + h * kHalf,
                        _mm256_castsi256_ps(_mm256_and_si256(both, upper)));
      }
  }

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t, int64_t steps, bool add,
                  float* c, int64_t c_stride) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    __m256 low[R];
    __m256 high[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      low[r] = add ? _mm256_loadu_ps(c + r * c_stride) : _mm256_setzero_ps();
      high[r] = add ? _mm256_loadu_ps(c + r * c_stride + kHalf) : _mm256_setzero_ps();
    }
    for (int64_t s = 0; s < steps; ++s, w += 2 * kPanel) {
      _mm_prefetch(reinterpret_cast<const char*>(w) + kStreamAhead, _MM_HINT_T0);
      const __m256i both0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
      const __m256i both1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 2 * kHalf));
      const float* xs = x + s * 2;
      const __m256 even0 = _mm256_castsi256_ps(_mm256_slli_epi32(both0, 16));
      const __m256 even1 = _mm256_castsi256_ps(_mm256_slli_epi32(both1, 16));
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 one = _mm256_broadcast_ss(xs + r * x_stride);
        low[r] = _mm256_fmadd_ps(one, even0, low[r]);
        high[r] = _mm256_fmadd_ps(one, even1, high[r]);
      }
      const __m256 odd0 = _mm256_castsi256_ps(_mm256_and_si256(both0, upper));
      const __m256 odd1 = _mm256_castsi256_ps(_mm256_and_si256(both1, upper));
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 one = _mm256_broadcast_ss(xs + r * x_stride + 1);
        low[r] = _mm256_fmadd_ps(one, odd0, low[r]);
        high[r] = _mm256_fmadd_ps(one, odd1, high[r]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      _mm256_storeu_ps(c + r * c_stride, low[r]);
      _mm256_storeu_ps(c + r * c_stride + kHalf, high[r]);
    }
  }
};

void linear_f32(const LinearTask& t) { linear_tiles<F32Tile>(t); }
void linear_bf16(const LinearTask& t) { linear_expanded<Bf16Tile, F32Tile>(t); }

}  // namespace

constexpr LinearKernels kLinearAvx2{linear_f32, linear_bf16, nullptr};

}  // namespace tandem::cpu
