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

// Two streams, fetched ahead: faster than one, or than the hardware's prefetching alone.
uint64_t read_avx512(const uint64_t* p, size_t words) {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  const uint64_t* q = p + words / 2;
  for (size_t i = 0; i + 8 <= words / 2; i += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(q + i) + 4096, _MM_HINT_T0);
    a = _mm512_add_epi64(a, _mm512_loadu_si512(p + i));
    b = _mm512_add_epi64(b, _mm512_loadu_si512(q + i));
  }
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, _mm512_add_epi64(a, b));
  return lanes[0] + lanes[7];
}

}  // namespace tandem::bench
