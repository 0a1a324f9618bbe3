#include <immintrin.h>

#include "kernels/cpu/linear_tiles.h"

namespace tandem::cpu {
namespace {

// Bytes. Up to two streams are fetched ahead of the hardware prefetcher; more do better without.
constexpr int64_t kStreamAhead = 4096;
constexpr int kHalf = 8;  // a panel is two vectors

// 6 rows x 1 panel: 12 accumulators, two weights, a broadcast and a spare of the 16 registers. Few
// rows: as many panels as fit, since weights then come from memory, one stream a panel (decode of
// SmolLM2 with 2 threads of Zen 4: 8.6 ms with two, 8.4 with four).
constexpr int panels_of(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

template <int R, int P>
struct Accumulators {
  __m256 low[R][P];
  __m256 high[R][P];

  void load(bool add_up, const float* c, int64_t c_stride) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const float* at = c + r * c_stride + p * kPanel;
        low[r][p] = add_up ? _mm256_loadu_ps(at) : _mm256_setzero_ps();
        high[r][p] = add_up ? _mm256_loadu_ps(at + kHalf) : _mm256_setzero_ps();
      }
  }
  void store(float* c, int64_t c_stride) const {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        _mm256_storeu_ps(c + r * c_stride + p * kPanel, low[r][p]);
        _mm256_storeu_ps(c + r * c_stride + p * kPanel + kHalf, high[r][p]);
      }
  }
  // Panel p's weights of one input, for all rows.
  void add(int p, const float* x, int64_t x_stride, __m256 w0, __m256 w1) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 one = _mm256_broadcast_ss(x + r * x_stride);
      low[r][p] = _mm256_fmadd_ps(one, w0, low[r][p]);
      high[r][p] = _mm256_fmadd_ps(one, w1, high[r][p]);
    }
  }
};

inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kStreamAhead, _MM_HINT_T0);
}

struct F32Tile {
  using X = float;
  using W = float;
  static constexpr int kRows = 6;
  static constexpr int kStep = 1;
  static constexpr int panels(int rows) { return panels_of(rows); }

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t steps,
                  bool add_up, float* c, int64_t c_stride) {
    Accumulators<R, P> acc;
    acc.load(add_up, c, c_stride);
    for (int64_t s = 0; s < steps; ++s)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const float* at = w + p * w_stride + s * kPanel;
        if constexpr (P <= 2) prefetch(at);
        acc.add(p, x + s, x_stride, _mm256_loadu_ps(at), _mm256_loadu_ps(at + kHalf));
      }
    acc.store(c, c_stride);
  }
};

// A packed step holds two inputs of 16 outputs side by side; a shift and a mask make two float
// vectors of each half.
struct Bf16Tile {
  using X = float;
  using W = uint16_t;
  static constexpr int kRows = 6;
  static constexpr int kStep = 2;
  static constexpr int panels(int rows) { return panels_of(rows); }

  static __m256i half(const W* w, int h) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + h * 2 * kHalf));
  }
  static __m256 even(__m256i both) { return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)); }
  static __m256 odd(__m256i both) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    return _mm256_castsi256_ps(_mm256_and_si256(both, upper));
  }

  static void expand(const W* w, int64_t steps, float* out) {
    for (int64_t s = 0; s < steps; ++s, w += 2 * kPanel, out += 2 * kPanel) {
      prefetch(w);
      for (int h = 0; h < 2; ++h) {
        _mm256_store_ps(out + h * kHalf, even(half(w, h)));
        _mm256_store_ps(out + kPanel + h * kHalf, odd(half(w, h)));
      }
    }
  }

  template <int R, int P>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t steps,
                  bool add_up, float* c, int64_t c_stride) {
    Accumulators<R, P> acc;
    acc.load(add_up, c, c_stride);
    for (int64_t s = 0; s < steps; ++s)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const uint16_t* at = w + p * w_stride + s * 2 * kPanel;
        if constexpr (P <= 2) prefetch(at);
        const __m256i both0 = half(at, 0);
        const __m256i both1 = half(at, 1);
        acc.add(p, x + s * 2, x_stride, even(both0), even(both1));
        acc.add(p, x + s * 2 + 1, x_stride, odd(both0), odd(both1));
      }
    acc.store(c, c_stride);
  }
};

void linear_f32(const LinearTask& t) { linear_tiles<F32Tile>(t); }
void linear_bf16(const LinearTask& t) { linear_expanded<Bf16Tile, F32Tile>(t); }

}  // namespace

constexpr LinearKernels kLinearAvx2{linear_f32, linear_bf16, nullptr};

}  // namespace tandem::cpu
