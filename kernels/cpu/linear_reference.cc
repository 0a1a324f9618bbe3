#include "common/base/dtype.h"
#include "kernels/cpu/kernels.h"

namespace tandem::cpu {
namespace {

template <typename Weight>
void accumulate(const LinearTask& t, Weight weight) {
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* x = static_cast<const float*>(t.x) + r * t.x_stride;
    for (int64_t o = 0; o < t.panel_count * kPanel; ++o) {
      float sum = 0;
      for (int64_t k = 0; k < t.in; ++k) sum += x[k] * weight(o / kPanel, o % kPanel, k);
      t.c[r * t.c_stride + o] = sum;
    }
  }
}

void linear_f32(const LinearTask& t) {
  const float* w = static_cast<const float*>(t.panels);
  accumulate(t, [&](int64_t panel, int64_t lane, int64_t k) {
    return w[panel * panel_elements_f32(t.in) + k * kPanel + lane];
  });
}

void linear_bf16(const LinearTask& t) {
  const uint16_t* w = static_cast<const uint16_t*>(t.panels);
  accumulate(t, [&](int64_t panel, int64_t lane, int64_t k) {
    return to_float(
        Bf16{w[panel * panel_elements_bf16(t.in) + k / 2 * 2 * kPanel + lane * 2 + k % 2]});
  });
}

}  // namespace

constexpr LinearKernels kLinearReference{linear_f32, linear_bf16, nullptr};

}  // namespace tandem::cpu
