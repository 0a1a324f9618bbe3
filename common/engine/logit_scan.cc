#include "common/engine/logit_scan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

namespace tandem::engine {
namespace {

using F4 = float __attribute__((vector_size(16)));
using I4 = int32_t __attribute__((vector_size(16)));

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr size_t kChunk = 256;
constexpr size_t kBuckets = 1024;
constexpr float kBucketSpan = 24;  // nats below the best; what lies deeper shares the last bucket

F4 load(const float* p) {
  F4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void store(float* p, F4 v) { std::memcpy(p, &v, sizeof v); }
F4 splat(float x) { return F4{x, x, x, x}; }
I4 bits(F4 v) { return reinterpret_cast<I4>(v); }
F4 floats(I4 v) { return reinterpret_cast<F4>(v); }
F4 select(I4 mask, F4 yes, F4 no) { return floats((mask & bits(yes)) | (~mask & bits(no))); }

F4 sanitized4(F4 x) {
  const F4 bounded = select(x > splat(kLargest), splat(kLargest), x);
  return select(x != x, splat(kImpossible), bounded);
}

// Range reduction by ln 2 in two parts (Cody and Waite), then the Taylor polynomial.
F4 exp4(F4 x) {
  const I4 deep = x < splat(-87.0F);
  const F4 clamped = select(deep, splat(-87.0F), x);
  const F4 n = (clamped * 1.44269504F + 12582912.0F) - 12582912.0F;  // 1.5 * 2^23: rounds
  const F4 r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  F4 p = splat(1.0F / 5040);
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const I4 exponent = (__builtin_convertvector(n, I4) + 127) << 23;
  return floats(bits(p * floats(exponent)) & ~deep);
}

float sum_of(F4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// Up to kChunk values, padded with impossible ones: the tail of a vocabulary needs no other path.
const float* padded(std::span<const float> v, size_t begin, float (&buffer)[kChunk]) {
  if (begin + kChunk <= v.size()) return v.data() + begin;
  const size_t n = v.size() - begin;
  std::copy_n(v.data() + begin, n, buffer);
  std::fill(buffer + n, buffer + kChunk, kImpossible);
  return buffer;
}

// Masses of one chunk, 0 where the cut excludes the token. Returns their sum.
float chunk_masses(const float* logits, size_t first_id, const Cut& cut, float top, float inverse,
                   float* out) {
  const auto base = static_cast<int32_t>(first_id);
  I4 ids = {base, base + 1, base + 2, base + 3};
  F4 sum = splat(0);
  for (size_t j = 0; j < kChunk; j += 4) {
    const F4 x = load(logits + j);
    const I4 kept =
        (x > splat(cut.last.logit)) | ((x == splat(cut.last.logit)) & (ids <= cut.last.id));
    const F4 e = floats(bits(exp4((x - top) * inverse)) & kept);
    store(out + j, e);
    sum += e;
    ids += 4;
  }
  return sum_of(sum);
}

// Which of kBuckets a logit falls into, best first: a monotone function of the logit.
struct Bucketing {
  float top;
  float scale;

  Bucketing(LogitRange range, float inverse) : top(range.top) {
    const float span = std::min((range.top - range.bottom) * inverse, kBucketSpan);
    scale = span > 0 ? inverse * static_cast<float>(kBuckets) / span : 0;
  }
  [[nodiscard]] I4 operator()(F4 x) const {
    const F4 depth = (top - x) * scale;
    const F4 last = splat(kBuckets - 1);
    return __builtin_convertvector(select(depth < last, depth, last), I4);  // NaN: last
  }
};

}  // namespace

float sanitized(float x) { return x != x ? kImpossible : std::min(x, kLargest); }

void sanitize(std::span<float> logits) {
  size_t i = 0;
  for (; i + 4 <= logits.size(); i += 4) store(&logits[i], sanitized4(load(&logits[i])));
  for (; i < logits.size(); ++i) logits[i] = sanitized(logits[i]);
}

LogitRange find_range(std::span<const float> v) {
  F4 high = splat(kImpossible);
  F4 low = splat(-kImpossible);
  size_t i = 0;
  for (; i + 4 <= v.size(); i += 4) {
    const F4 x = load(&v[i]);
    high = select(x > high, x, high);
    low = select(x < low, x, low);
  }
  LogitRange range;
  for (int k = 0; k < 4; ++k) {
    range.top = std::max(range.top, high[k]);
    range.bottom = std::min(range.bottom, low[k]);
  }
  for (; i < v.size(); ++i) {
    range.top = std::max(range.top, v[i]);
    range.bottom = std::min(range.bottom, v[i]);
  }
  return range;
}

float exp_negative(float x) { return exp4(splat(x))[0]; }

double exp_sum(std::span<const float> logits, float top, float inverse) {
  float tail[kChunk];
  double total = 0;
  for (size_t i = 0; i < logits.size(); i += kChunk) {
    const float* x = padded(logits, i, tail);
    F4 sum = splat(0);
    for (size_t j = 0; j < kChunk; j += 4) sum += exp4((load(x + j) - top) * inverse);
    total += static_cast<double>(sum_of(sum));
  }
  return total;
}

std::vector<Candidate> best(std::span<const float> logits, size_t count) {
  count = std::min(count, logits.size());
  std::vector<Candidate> heap;  // its worst is the bar to clear
  if (count == 0) return heap;
  heap.reserve(count);
  for (size_t i = 0; i < count; ++i) heap.push_back({logits[i], static_cast<TokenId>(i)});
  std::make_heap(heap.begin(), heap.end(), better);
  const auto offer = [&](size_t i) {
    if (!(logits[i] > heap.front().logit)) return;  // a later id never wins a tie
    std::pop_heap(heap.begin(), heap.end(), better);
    heap.back() = {logits[i], static_cast<TokenId>(i)};
    std::push_heap(heap.begin(), heap.end(), better);
  };
  size_t i = count;
  for (; i + 16 <= logits.size(); i += 16) {
    const F4 bar = splat(heap.front().logit);
    const I4 above = (load(&logits[i]) > bar) | (load(&logits[i + 4]) > bar) |
                     (load(&logits[i + 8]) > bar) | (load(&logits[i + 12]) > bar);
    if ((above[0] | above[1] | above[2] | above[3]) == 0) continue;
    for (size_t j = i; j < i + 16; ++j) offer(j);
  }
  for (; i < logits.size(); ++i) offer(i);
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

namespace {

// Halves the open range by selection, so that flat distributions cost no full sort.
Candidate prefix_end(std::vector<Candidate>& c, double target, float top, float inverse) {
  const auto mass = [&](const Candidate& x) {
    return static_cast<double>(exp_negative((x.logit - top) * inverse));
  };
  const auto at = [&](size_t i) { return c.begin() + static_cast<std::ptrdiff_t>(i); };
  size_t low = 0;
  size_t high = c.size();
  double before = 0;
  while (high - low > 64) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(at(low), at(middle), at(high), better);
    double sum = 0;
    for (size_t i = low; i < middle; ++i) sum += mass(c[i]);
    if (before + sum >= target) {
      high = middle;
    } else {
      before += sum;
      low = middle;
    }
  }
  std::sort(at(low), at(high), better);
  for (size_t i = low; i < high; ++i) {
    before += mass(c[i]);
    if (before >= target) return c[i];
  }
  return c[high - 1];
}

}  // namespace

Candidate mass_prefix(std::vector<Candidate>& candidates, float top, float inverse, double share) {
  double total = 0;
  for (const Candidate& c : candidates)
    total += static_cast<double>(exp_negative((c.logit - top) * inverse));
  return prefix_end(candidates, total * share, top, inverse);
}

Candidate mass_prefix(std::span<const float> logits, LogitRange range, float inverse,
                      double share) {
  const Bucketing bucket_of(range, inverse);
  std::vector<double> mass(kBuckets);
  float tail[kChunk];
  for (size_t i = 0; i < logits.size(); i += kChunk) {
    const float* x = padded(logits, i, tail);
    for (size_t j = 0; j < kChunk; j += 4) {
      const F4 v = load(x + j);
      const I4 b = bucket_of(v);
      const F4 e = exp4((v - range.top) * inverse);
      for (int k = 0; k < 4; ++k) mass[static_cast<size_t>(b[k])] += static_cast<double>(e[k]);
    }
  }
  double total = 0;
  for (const double m : mass) total += m;
  // The bucket in which the prefix ends; only its tokens need an order.
  const double target = total * share;
  double before = 0;
  size_t end = 0;
  while (end + 1 < kBuckets && before + mass[end] < target) before += mass[end++];
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); i += kChunk) {
    const float* x = padded(logits, i, tail);
    const size_t n = std::min(kChunk, logits.size() - i);
    for (size_t j = 0; j < n; j += 4) {
      const I4 b = bucket_of(load(x + j));
      const I4 hit = b == static_cast<int32_t>(end);
      if ((hit[0] | hit[1] | hit[2] | hit[3]) == 0) continue;
      for (size_t k = j; k < std::min(j + 4, n); ++k)
        if (hit[static_cast<int>(k - j)] != 0)
          candidates.push_back({x[k], static_cast<TokenId>(i + k)});
    }
  }
  if (candidates.empty()) return Cut{}.last;  // rounding: everything before it already suffices
  return prefix_end(candidates, target - before, range.top, inverse);
}

TokenId draw(std::span<const float> logits, const Cut& cut, float top, float inverse, double u) {
  float tail[kChunk];
  float mass[kChunk];
  std::vector<double> sums;
  sums.reserve(logits.size() / kChunk + 1);
  double total = 0;
  for (size_t i = 0; i < logits.size(); i += kChunk) {
    sums.push_back(
        static_cast<double>(chunk_masses(padded(logits, i, tail), i, cut, top, inverse, mass)));
    total += sums.back();
  }
  double left = u * total;
  std::optional<TokenId> last;
  for (size_t c = 0; c < sums.size(); ++c) {
    if (sums[c] <= left) {
      left -= sums[c];
      continue;
    }
    const size_t i = c * kChunk;
    chunk_masses(padded(logits, i, tail), i, cut, top, inverse, mass);
    for (size_t j = 0; j < kChunk; ++j) {
      if (mass[j] == 0) continue;
      last = static_cast<TokenId>(i + j);
      if (static_cast<double>(mass[j]) > left) return *last;
      left -= static_cast<double>(mass[j]);
    }
  }
  if (last) return *last;  // rounding ate the rest
  const auto it = std::find(logits.begin(), logits.end(), top);
  return it == logits.end() ? 0 : static_cast<TokenId>(it - logits.begin());
}

}  // namespace tandem::engine
