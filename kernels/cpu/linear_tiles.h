#pragma once

#include <cstdint>

#include "kernels/cpu/kernels.h"

// How a linear kernel walks over rows, panels and inputs; included by each instruction set's file,
// which brings the arithmetic as `Tile`:
//   static constexpr int kRows, kPanels;  largest register tile
//   static constexpr int kStep;           inputs per packed step (1 f32, 2 bf16)
//   using X, W;                           element types of activations and weights
//   template <int R, int P> static void run(const X* x, int64_t x_stride, const W* w,
//       int64_t w_stride, int64_t steps, bool add, float* c, int64_t c_stride);
// run() computes R rows by P panels over `steps` packed steps, on top of what c holds if `add`.
// Every accumulator belongs to one row and output and adds up the inputs in their order; spilling
// it to c between blocks of inputs does not round. So tiling never shows in the results.
namespace tandem::cpu {
namespace {

// Inputs per block when there are many rows: 12 rows of bf16 activations then stay in a 32 KiB L1.
constexpr int64_t kInputBlock = 1024;

template <typename Tile, int P>
struct RowDispatch {
  using Run = void (*)(const typename Tile::X*, int64_t, const typename Tile::W*, int64_t, int64_t,
                       bool, float*, int64_t);
  template <int R>
  static void fill(Run* table) {
    table[R] = &Tile::template run<R, P>;
    if constexpr (R > 1) fill<R - 1>(table);
  }
};

template <typename Tile>
void linear_tiles(const LinearTask& t) {
  using X = typename Tile::X;
  using W = typename Tile::W;
  constexpr int kRows = Tile::kRows;
  constexpr int kPanels = Tile::kPanels;
  typename RowDispatch<Tile, 1>::Run one[kRows + 1] = {};
  typename RowDispatch<Tile, kPanels>::Run many[kRows + 1] = {};
  RowDispatch<Tile, 1>::template fill<kRows>(one);
  RowDispatch<Tile, kPanels>::template fill<kRows>(many);

  const int64_t steps = (t.in + Tile::kStep - 1) / Tile::kStep;
  const int64_t w_stride = steps * Tile::kStep * kPanel;  // elements from panel to panel
  // Few rows: one pass over each panel from end to end, as memory streams best.
  const int64_t block = t.rows <= kRows ? steps : kInputBlock / Tile::kStep;
  for (int64_t s = 0; s < steps; s += block) {
    const int64_t count = steps - s < block ? steps - s : block;
    const X* x = static_cast<const X*>(t.x) + s * Tile::kStep;
    const W* w = static_cast<const W*>(t.panels) + s * Tile::kStep * kPanel;
    for (int64_t r = 0; r < t.rows; r += kRows) {
      const int64_t rows = t.rows - r < kRows ? t.rows - r : kRows;
      float* c = t.c + r * t.c_stride;
      int64_t p = 0;
      if (rows > Tile::kStreamRows)
        for (; p + kPanels <= t.panel_count; p += kPanels)
          many[rows](x + r * t.x_stride, t.x_stride, w + p * w_stride, w_stride, count, s > 0,
                     c + p * kPanel, t.c_stride);
      for (; p < t.panel_count; ++p)
        one[rows](x + r * t.x_stride, t.x_stride, w + p * w_stride, w_stride, count, s > 0,
                  c + p * kPanel, t.c_stride);
    }
  }
}

// bf16 weights and float activations with many rows: panels are expanded to float once, a block of
// inputs at a time, instead of once per tile of rows, which would cost the multiply units a third
// of their time. Few rows go through Packed, which does the same arithmetic on packed panels and
// also brings
//   static void expand(const uint16_t* w, int64_t steps, float* out);
constexpr int64_t kExpandInputs = 256;  // 16 KiB of float weights a panel

template <typename Packed, typename Plain>
void linear_expanded(const LinearTask& t) {
  if (t.rows <= Packed::kRows) return linear_tiles<Packed>(t);
  constexpr int kRows = Plain::kRows;
  constexpr int kPanels = Plain::kPanels;
  typename RowDispatch<Plain, 1>::Run one[kRows + 1] = {};
  typename RowDispatch<Plain, kPanels>::Run many[kRows + 1] = {};
  RowDispatch<Plain, 1>::template fill<kRows>(one);
  RowDispatch<Plain, kPanels>::template fill<kRows>(many);
  alignas(64) float weights[kPanels * kExpandInputs * kPanel];

  const int64_t in = (t.in + 1) / 2 * 2;
  const uint16_t* w = static_cast<const uint16_t*>(t.panels);
  for (int64_t p = 0; p < t.panel_count;) {
    const int64_t panels = t.panel_count - p < kPanels ? 1 : kPanels;
    const auto* table = panels == 1 ? one : many;
    for (int64_t k = 0; k < in; k += kExpandInputs) {
      const int64_t inputs = in - k < kExpandInputs ? in - k : kExpandInputs;
      for (int64_t j = 0; j < panels; ++j)
        Packed::expand(w + ((p + j) * in + k) * kPanel, inputs / 2, weights + j * inputs * kPanel);
      const float* x = static_cast<const float*>(t.x) + k;
      for (int64_t r = 0; r < t.rows; r += kRows)
        table[t.rows - r < kRows ? t.rows - r : kRows](
            x + r * t.x_stride, t.x_stride, weights, inputs * kPanel, inputs, k > 0,
            t.c + r * t.c_stride + p * kPanel, t.c_stride);
    }
    p += panels;
  }
}

}  // namespace
}  // namespace tandem::cpu
