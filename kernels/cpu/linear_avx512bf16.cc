#include <immintrin.h>

#include "kernels/cpu/linear_avx512.h"
#include "kernels/cpu/linear_tiles.h"

namespace tandem::cpu {
namespace {

// 12 x 2 panels: 24 accumulators, two weights and a broadcast of the 32 registers; 2 + 12 loads for
// 24 dot products, which Zen 4 and Sapphire Rapids start one per cycle (6 cycles latency).
struct Bf16Tile {
  using X = uint16_t;
  using W = uint16_t;
  static constexpr int kRows = 12;
  static constexpr int kStep = 2;
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
      __m512bh weight[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const uint16_t* at = w + p * w_stride + s * 2 * kPanel;
        weight[p] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        int pair = 0;
        __builtin_memcpy(&pair, x + r * x_stride + s * 2, sizeof pair);
        const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], both, weight[p]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) _mm512_storeu_ps(c + r * c_stride + p * kPanel, acc[r][p]);
  }
};

void linear_f32(const LinearTask& t) { linear_tiles<F32Tile>(t); }
void linear_bf16(const LinearTask& t) { linear_expanded<ExpandTile, F32Tile>(t); }
void linear_bf16_rounded(const LinearTask& t) { linear_tiles<Bf16Tile>(t); }

}  // namespace

constexpr LinearKernels kLinearAvx512Bf16{linear_f32, linear_bf16, linear_bf16_rounded};

}  // namespace tandem::cpu
