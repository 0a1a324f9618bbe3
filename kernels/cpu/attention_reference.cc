#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"

namespace tandem::cpu {
namespace {

void merge(float part_max, float part_sum, const float* part_acc, int64_t n, float* max, float* sum,
           float* acc) {
  if (part_max == -INFINITY) return;
  const float both = std::max(*max, part_max);
  const float keep = std::exp(*max - both);
  const float take = std::exp(part_max - both);
  *max = both;
  *sum = *sum * keep + part_sum * take;
  for (int64_t i = 0; i < n; ++i) acc[i] = acc[i] * keep + part_acc[i] * take;
}

float dot_key(const AttendTask& t, int64_t row, int32_t key) {
  const float* q = t.q + row * t.head_dim;
  const float* page = t.keys + key / kPageTokens * t.head_dim * kPageTokens + key % kPageTokens;
  float sum = 0;
  for (int64_t d = 0; d < t.head_dim; ++d) sum += q[d] * page[d * kPageTokens];
  return sum;
}

void attend(const AttendTask& t) {
  float* scores = t.scratch;                 // [keys]
  float* part = t.scratch + kPartitionKeys;  // [value_stride]
  for (int64_t r = 0; r < t.rows; ++r) {
    float top = -INFINITY;
    for (int32_t j = t.first[r]; j < t.last[r]; ++j) {
      scores[j] = dot_key(t, r, j);
      top = std::max(top, scores[j]);
    }
    if (top == -INFINITY) continue;
    std::fill_n(part, t.value_stride, 0.0F);
    float sum = 0;
    for (int32_t j = t.first[r]; j < t.last[r]; ++j) {
      const float p = std::exp(scores[j] - top);
      sum += p;
      for (int64_t d = 0; d < t.head_dim; ++d) part[d] += p * t.values[j * t.value_stride + d];
    }
    merge(top, sum, part, t.value_stride, t.max + r, t.sum + r, t.acc + r * t.value_stride);
  }
}

void finish(const float* acc, float sum, int64_t n, float* out) {
  const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
  for (int64_t i = 0; i < n; ++i) out[i] = acc[i] * inverse;
}

}  // namespace

constexpr AttentionKernels kAttentionReference{attend, merge, finish};

}  // namespace tandem::cpu
