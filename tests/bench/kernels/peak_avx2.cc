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

namespace {

inline __m256i load(const uint64_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

uint64_t sum(__m256i v) {
  return static_cast<uint64_t>(_mm256_extract_epi64(v, 0) + _mm256_extract_epi64(v, 1));
}

}  // namespace

uint64_t read_two(const uint64_t* p, size_t words) {
  __m256i a = _mm256_setzero_si256();
  const uint64_t* q = p + words / 2;
  for (size_t i = 0; i + 8 <= words / 2; i += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(q + i) + 4096, _MM_HINT_T0);
    a = _mm256_add_epi64(_mm256_add_epi64(a, load(p + i)), load(p + i + 4));
    a = _mm256_add_epi64(_mm256_add_epi64(a, load(q + i)), load(q + i + 4));
  }
  return sum(a);
}

uint64_t read_eight(const uint64_t* p, size_t words) {
  constexpr size_t kStreams = 8;
  __m256i a[kStreams] = {};
  const size_t stretch = words / kStreams;
  for (size_t i = 0; i + 8 <= stretch; i += 8)
#pragma GCC unroll 8
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* at = p + s * stretch + i;
      a[s] = _mm256_add_epi64(_mm256_add_epi64(a[s], load(at)), load(at + 4));
    }
  for (size_t s = 1; s < kStreams; ++s) a[0] = _mm256_add_epi64(a[0], a[s]);
  return sum(a[0]);
}

}  // namespace tandem::bench
