#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::bench {

double peak_f32_avx2(int64_t iterations) {
  __m256 a[12];
  for (__m256& x : a) x = _mm256_setzero_ps();
  const __m256 half = _mm256_set1_ps(0.5F);
  for (int64_t i = 0; i < iterations; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) a[j] = _mm256_fmadd_ps(a[j], half, half);
  __m256 sum = a[0];
  for (int j = 1; j < 12; ++j) sum = _mm256_add_ps(sum, a[j]);
  volatile float sink = _mm256_cvtss_f32(sum);
  (void)sink;
  return static_cast<double>(iterations) * 12 * 16;
}

// Two streams, fetched ahead: faster than one, or than the hardware's prefetching alone.
uint64_t read_avx2(const uint64_t* p, size_t words) {
  __m256i a = _mm256_setzero_si256();
  __m256i b = a;
  const uint64_t* q = p + words / 2;
  for (size_t i = 0; i + 8 <= words / 2; i += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(q + i) + 4096, _MM_HINT_T0);
    for (size_t j = i; j < i + 8; j += 4) {
      a = _mm256_add_epi64(a, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + j)));
      b = _mm256_add_epi64(b, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + j)));
    }
  }
  a = _mm256_add_epi64(a, b);
  return static_cast<uint64_t>(_mm256_extract_epi64(a, 0) + _mm256_extract_epi64(a, 1));
}

}  // namespace tandem::bench
