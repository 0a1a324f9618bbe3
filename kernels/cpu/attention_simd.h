#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_math.h"

// Attention over Vec; after simd_avx2.h or simd_avx512.h. Rows go in tiles of up to kAttendRows
// that share the loads of keys and values; masked keys weigh exactly zero, so a row's sums do not
// show the tile it was in.
namespace tandem::cpu {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Vector `v` of a partition's keys, at channel 0; the next channel is kPageTokens floats on.
inline const float* key_vec(const AttendTask& t, int64_t v) {
  const int64_t key = v * kWidth;
  return t.keys + key / kPageTokens * t.head_dim * kPageTokens + key % kPageTokens;
}

// Scores of R rows and K vectors of keys, masked, into scratch[row][kPartitionKeys].
template <int R, int K>
inline void score_block(const AttendTask& t, int64_t row, int64_t v) {
  const float* q = t.q + row * t.head_dim;
  const float* k[K];
  Vec acc[R][K];
#pragma GCC unroll 8
  for (int j = 0; j < K; ++j) k[j] = key_vec(t, v + j);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) acc[r][j] = zero();
  for (int64_t d = 0; d < t.head_dim; ++d) {
    Vec key[K];
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) key[j] = load(k[j] + d * kPageTokens);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec one = set1(q[r * t.head_dim + d]);
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) acc[r][j] = fma(one, key[j], acc[r][j]);
    }
  }
  const Vec nothing = set1(kMinusInfinity);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec first = set1(static_cast<float>(t.first[row + r]));
    const Vec last = set1(static_cast<float>(t.last[row + r]));
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      const Vec index = iota(static_cast<float>((v + j) * kWidth));
      const Vec seen = if_less(index, last, acc[r][j], nothing);
      store(t.scratch + r * kPartitionKeys + (v + j) * kWidth,
            if_less(index, first, nothing, seen));
    }
  }
}

// Turns scores of vectors [begin, end) into weights relative to the row's maximum, which it returns
// (-inf: no key is visible, all weights are zero).
inline float weigh(float* scores, int64_t begin, int64_t end, float* sum) {
  Vec top = set1(kMinusInfinity);
  for (int64_t v = begin; v < end; ++v) top = max(top, load(scores + v * kWidth));
  const float row_max = reduce_max(top);
  const Vec shift = set1(row_max == kMinusInfinity ? 0.0F : row_max);
  Vec total = zero();
  for (int64_t v = begin; v < end; ++v) {
    const Vec p = exp(sub(load(scores + v * kWidth), shift));
    store(scores + v * kWidth, p);
    total = add(total, p);
  }
  *sum = reduce_add(total);
  return row_max;
}

// part[r][at ..] = sum over keys [begin, end) of weight * value, for D vectors of channels.
template <int R, int D>
inline void value_block(const AttendTask& t, int64_t begin, int64_t end, int64_t at, float* part) {
  Vec acc[R][D];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int d = 0; d < D; ++d) acc[r][d] = zero();
  const float* value = t.values + begin * t.value_stride + at;
  for (int64_t j = begin; j < end; ++j, value += t.value_stride) {
    Vec v[D];
#pragma GCC unroll 8
    for (int d = 0; d < D; ++d) v[d] = load(value + d * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec weight = set1(t.scratch[r * kPartitionKeys + j]);
#pragma GCC unroll 8
      for (int d = 0; d < D; ++d) acc[r][d] = fma(weight, v[d], acc[r][d]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int d = 0; d < D; ++d) store(part + r * t.value_stride + at + d * kWidth, acc[r][d]);
}

void merge(float part_max, float part_sum, const float* part_acc, int64_t n, float* max_state,
           float* sum, float* acc) {
  if (part_max == kMinusInfinity) return;
  const float both = *max_state > part_max ? *max_state : part_max;
  const Vec keep = exp(set1(*max_state - both));
  const Vec take = exp(set1(part_max - both));
  float factors[2 * kWidth];
  store(factors, keep);
  store(factors + kWidth, take);
  *max_state = both;
  *sum = *sum * factors[0] + part_sum * factors[kWidth];
  for (int64_t i = 0; i < n; i += kWidth)
    store(acc + i, fma(load(part_acc + i), take, mul(load(acc + i), keep)));
}

template <int R>
void attend_tile(const AttendTask& t, int64_t row) {
  int64_t begin = kPartitionKeys;
  int64_t end = 0;
  for (int64_t r = row; r < row + R; ++r) {
    if (t.last[r] <= t.first[r]) continue;
    if (t.first[r] < begin) begin = t.first[r];
    if (t.last[r] > end) end = t.last[r];
  }
  if (end <= begin) return;
  const int64_t first_vec = begin / kWidth;
  const int64_t last_vec = (end + kWidth - 1) / kWidth;
  int64_t v = first_vec;
  for (; v + kScoreVecs <= last_vec; v += kScoreVecs) score_block<R, kScoreVecs>(t, row, v);
  for (; v < last_vec; ++v) score_block<R, 1>(t, row, v);

  float tops[R];
  float sums[R];
  for (int r = 0; r < R; ++r)
    tops[r] = weigh(t.scratch + r * kPartitionKeys, first_vec, last_vec, &sums[r]);

  float* part = t.scratch + kTileRows * kPartitionKeys;
  int64_t at = 0;
  for (; at + kValueVecs * kWidth <= t.value_stride; at += kValueVecs * kWidth)
    value_block<R, kValueVecs>(t, begin, end, at, part);
  for (; at < t.value_stride; at += kWidth) value_block<R, 1>(t, begin, end, at, part);
  for (int r = 0; r < R; ++r)
    merge(tops[r], sums[r], part + r * t.value_stride, t.value_stride, t.max + row + r,
          t.sum + row + r, t.acc + (row + r) * t.value_stride);
}

template <int R>
void attend_rest(const AttendTask& t, int64_t row) {
  if (t.rows - row == R) return attend_tile<R>(t, row);
  if constexpr (R > 1) attend_rest<R - 1>(t, row);
}

void attend(const AttendTask& t) {
  static_assert(kTileRows <= kAttendRows, "the caller's scratch is for kAttendRows");
  int64_t row = 0;
  for (; row + kTileRows <= t.rows; row += kTileRows) attend_tile<kTileRows>(t, row);
  attend_rest<kTileRows - 1>(t, row);
}

void finish(const float* acc, float sum, int64_t n, float* out) {
  const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, mul(load(acc + i), set1(inverse)));
  if (i < n) store_part(out + i, mul(load_part(acc + i, n - i), set1(inverse)), n - i);
}

constexpr AttentionKernels kAttention{attend, merge, finish};

}  // namespace
}  // namespace tandem::cpu
