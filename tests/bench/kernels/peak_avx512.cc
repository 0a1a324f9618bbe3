#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::bench {

double peak_f32_avx512(int64_t iterations) {
  __m512 a[12];
  for (__m512& x : a) x = _mm512_setzero_ps();
  const __m512 half = _mm512_set1_ps(0.5F);
  for (int64_t i = 0; i < iterations; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) a[j] = _mm512_fmadd_ps(a[j], half, half);
  __m512 sum = a[0];
  for (int j = 1; j < 12; ++j) sum = _mm512_add_ps(sum, a[j]);
  volatile float sink = _mm512_cvtss_f32(sum);
  (void)sink;
  return static_cast<double>(iterations) * 12 * 32;
}

}  // namespace tandem::bench
