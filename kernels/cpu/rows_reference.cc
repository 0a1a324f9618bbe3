#include <cmath>

#include "common/base/dtype.h"
#include "kernels/cpu/kernels.h"

namespace tandem::cpu {
namespace {

void rms_norm(const float* x, const float* scale, float eps, int64_t n, float* out) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double mean = squares / static_cast<double>(n);
  const auto factor = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * scale[i];
}

void round_to_bf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_bf16(x[i]).bits;
  if (n % 2 != 0) out[n] = 0;
}

float biased(const float* a, const float* bias, int64_t i) {
  return bias == nullptr ? a[i] : a[i] + bias[i];
}

void store(const float* a, const float* bias, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = biased(a, bias, i);
}

void add(const float* a, const float* bias, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] += biased(a, bias, i);
}

void silu_mul(const float* gate, const float* up, const float* gate_bias, const float* up_bias,
              int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = biased(gate, gate_bias, i);
    out[i] = g / (1.0F + std::exp(-g)) * biased(up, up_bias, i);
  }
}

void axpy(const float* a, float weight, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] += weight * a[i];
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

constexpr RowKernels kRowsReference{rms_norm, round_to_bf16, store, add, silu_mul, axpy, rope};

}  // namespace tandem::cpu
