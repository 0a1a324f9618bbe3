#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_math.h"

// Row kernels over Vec; after simd_avx2.h or simd_avx512.h. The last, partial vector goes through
// the same arithmetic as the others.
namespace tandem::cpu {
namespace {

// step(i, count): elements i .. i+count-1, count <= kWidth
template <typename Step>
inline void for_each_vec(int64_t n, Step step) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) step(i, kWidth);
  if (i < n) step(i, n - i);
}

inline Vec load_n(const float* p, int64_t count) {
  return count == kWidth ? load(p) : load_part(p, count);
}
inline void store_n(float* p, Vec v, int64_t count) {
  if (count == kWidth)
    store(p, v);
  else
    store_part(p, v, count);
}
inline Vec biased(const float* a, const float* bias, int64_t i, int64_t count) {
  const Vec v = load_n(a + i, count);
  return bias == nullptr ? v : add(v, load_n(bias + i, count));
}

void rms_norm(const float* x, const float* scale, float eps, int64_t n, float* out) {
  Vec squares[2] = {zero(), zero()};
  for_each_vec(n, [&](int64_t i, int64_t count) {
    const Vec v = load_n(x + i, count);
    Vec& sum = squares[i / kWidth % 2];
    sum = fma(v, v, sum);
  });
  const float mean = reduce_add(add(squares[0], squares[1])) / static_cast<float>(n);
  const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const Vec factor = set1(1.0F / root);
  for_each_vec(n, [&](int64_t i, int64_t count) {
    store_n(out + i, mul(mul(load_n(x + i, count), factor), load_n(scale + i, count)), count);
  });
}

void round_to_bf16(const float* x, int64_t n, uint16_t* out) {
  for_each_vec(n,
               [&](int64_t i, int64_t count) { store_bf16(out + i, load_n(x + i, count), count); });
  if (n % 2 != 0) out[n] = 0;
}

void store_row(const float* a, const float* bias, int64_t n, float* out) {
  for_each_vec(
      n, [&](int64_t i, int64_t count) { store_n(out + i, biased(a, bias, i, count), count); });
}

void add_row(const float* a, const float* bias, int64_t n, float* x) {
  for_each_vec(n, [&](int64_t i, int64_t count) {
    store_n(x + i, add(load_n(x + i, count), biased(a, bias, i, count)), count);
  });
}

void silu_mul(const float* gate, const float* up, const float* gate_bias, const float* up_bias,
              int64_t n, float* out) {
  for_each_vec(n, [&](int64_t i, int64_t count) {
    const Vec g = biased(gate, gate_bias, i, count);
    const Vec u = biased(up, up_bias, i, count);
    store_n(out + i, mul(div(g, add(set1(1), exp(sub(zero(), g)))), u), count);
  });
}

void axpy(const float* a, float weight, int64_t n, float* out) {
  for_each_vec(n, [&](int64_t i, int64_t count) {
    store_n(out + i, fma(set1(weight), load_n(a + i, count), load_n(out + i, count)), count);
  });
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  for_each_vec(half, [&](int64_t i, int64_t count) {
    const Vec a = load_n(x + i, count);
    const Vec b = load_n(x + half + i, count);
    const Vec c = load_n(cos + i, count);
    const Vec s = load_n(sin + i, count);
    store_n(x + i, fnma(b, s, mul(a, c)), count);
    store_n(x + half + i, fma(a, s, mul(b, c)), count);
  });
}

constexpr RowKernels kRows{rms_norm, round_to_bf16, store_row, add_row, silu_mul, axpy, rope};

}  // namespace
}  // namespace tandem::cpu
