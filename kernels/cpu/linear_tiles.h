#pragma once

#include <cstdint>

#include "kernels/cpu/kernels.h"

// How a linear kernel walks over rows, panels and inputs; included by each instruction set's file,
// which brings the arithmetic as `Tile`:
//   static constexpr int kRows;           rows of the largest register tile
//   static constexpr int panels(int r);   panels that r rows leave registers for: 1, 2, 4 or 8
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

constexpr int kMostPanels = 8;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// run() by number of rows, and by powers of two of panels as far as the rows leave registers.
template <typename Tile>
class TileTable {
 public:
  TileTable() { fill<Tile::kRows, Tile::panels(Tile::kRows)>(); }

  // All panels of some rows.
  void run(int64_t rows, const typename Tile::X* x, int64_t x_stride, const typename Tile::W* w,
           int64_t w_stride, int64_t steps, bool add, int64_t panel_count, float* c,
           int64_t c_stride) const {
    int64_t p = 0;
    int64_t width = Tile::panels(static_cast<int>(rows));
    for (; width > 0; width /= 2) {
      const Run tile = runs_[rows][width];
      for (; p + width <= panel_count; p += width)
        tile(x, x_stride, w + p * w_stride, w_stride, steps, add, c + p * kPanel, c_stride);
    }
  }

 private:
  using Run = void (*)(const typename Tile::X*, int64_t, const typename Tile::W*, int64_t, int64_t,
                       bool, float*, int64_t);
  template <int R, int P>
  void fill() {
    runs_[R][P] = &Tile::template run<R, P>;
    if constexpr (P > 1)
      fill<R, P / 2>();
    else if constexpr (R > 1)
      fill<R - 1, Tile::panels(R - 1)>();
  }

  Run runs_[Tile::kRows + 1][kMostPanels + 1] = {};
};

template <typename Tile>
void linear_tiles(const LinearTask& t) {
  using X = typename Tile::X;
  using W = typename Tile::W;
  const TileTable<Tile> table;
  const int64_t steps = ceil_div(t.in, Tile::kStep);
  const int64_t w_stride = steps * Tile::kStep * kPanel;  // elements from panel to panel
  // Few rows: one pass over each panel from end to end, as memory streams best.
  const int64_t block = t.rows <= 2 * Tile::kRows ? steps : kInputBlock / Tile::kStep;
  const int64_t rows_per_tile = ceil_div(t.rows, ceil_div(t.rows, Tile::kRows));
  for (int64_t s = 0; s < steps; s += block) {
    const int64_t count = steps - s < block ? steps - s : block;
    const X* x = static_cast<const X*>(t.x) + s * Tile::kStep;
    const W* w = static_cast<const W*>(t.panels) + s * Tile::kStep * kPanel;
    for (int64_t r = 0; r < t.rows; r += rows_per_tile)
      table.run(t.rows - r < rows_per_tile ? t.rows - r : rows_per_tile, x + r * t.x_stride,
                t.x_stride, w, w_stride, count, s > 0, t.panel_count, t.c + r * t.c_stride,
                t.c_stride);
  }
}

// bf16 weights and float activations with many rows: panels are expanded to float once, a block of
// inputs at a time, instead of once per tile of rows, which would cost the multiply units a third
// of their time. Few rows go through Packed, which does the same arithmetic on packed panels and
// also brings
//   static void expand(const uint16_t* w, int64_t steps, float* out);
constexpr int64_t kExpandFloats = 4096;  // 16 KiB: half of the smallest L1

template <typename Packed, typename Plain>
void linear_expanded(const LinearTask& t) {
  if (t.rows <= 2 * Packed::kRows) return linear_tiles<Packed>(t);
  constexpr int kRows = Plain::kRows;
  constexpr int64_t kPanels = Plain::panels(kRows);
  constexpr int64_t kInputs = kExpandFloats / kPanels / kPanel;
  const TileTable<Plain> table;
  alignas(64) float weights[kExpandFloats];

  const int64_t in = ceil_div(t.in, 2) * 2;
  const uint16_t* w = static_cast<const uint16_t*>(t.panels);
  for (int64_t p = 0; p < t.panel_count; p += kPanels) {
    const int64_t panels = t.panel_count - p < kPanels ? t.panel_count - p : kPanels;
    for (int64_t k = 0; k < in; k += kInputs) {
      const int64_t inputs = in - k < kInputs ? in - k : kInputs;
      for (int64_t j = 0; j < panels; ++j)
        Packed::expand(w + ((p + j) * in + k) * kPanel, inputs / 2, weights + j * inputs * kPanel);
      const float* x = static_cast<const float*>(t.x) + k;
      for (int64_t r = 0; r < t.rows; r += kRows)
        table.run(t.rows - r < kRows ? t.rows - r : kRows, x + r * t.x_stride, t.x_stride, weights,
                  inputs * kPanel, inputs, k > 0, panels, t.c + r * t.c_stride + p * kPanel,
                  t.c_stride);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
