#include "common/engine/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace tandem::engine {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kGreedyBelow = 1e-5F;
constexpr size_t kChunk = 256;
constexpr size_t kLanes = 8;

// exp(x) for x <= 0 within 2 ulp, 0 below -87. Plain arithmetic, so that it vectorizes and gives the
// same bits on every machine. Range reduction by ln 2 in two parts (Cody and Waite), then Taylor.
inline float exp_negative(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  const float shifted = clamped * 1.44269504F + 12582912.0F;  // 1.5 * 2^23: rounds to an integer
  const float n = shifted - 12582912.0F;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  const float value = p * std::bit_cast<float>(exponent);
  return x < -87.0F ? 0.0F : value;
}

float sanitized(float x) { return x != x ? kImpossible : std::min(x, kLargest); }

void sanitize(std::span<float> logits) {
  for (float& x : logits) x = x != x ? kImpossible : (x > kLargest ? kLargest : x);
}

float maximum(std::span<const float> v) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kImpossible);
  size_t i = 0;
  for (; i + kLanes <= v.size(); i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = v[i + j] > lanes[j] ? v[i + j] : lanes[j];
  for (; i < v.size(); ++i) lanes[0] = std::max(lanes[0], v[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

TokenId first_of(std::span<const float> v, float value) {
  const auto it = std::find(v.begin(), v.end(), value);
  return it == v.end() ? 0 : static_cast<TokenId>(it - v.begin());
}

// Sum of exp((x - top) * inverse) in an order that does not depend on the machine.
double exp_sum(std::span<const float> v, float top, float inverse) {
  double lanes[kLanes] = {};
  float buffer[kChunk];
  for (size_t i = 0; i < v.size(); i += kChunk) {
    const size_t n = std::min(kChunk, v.size() - i);
    for (size_t j = 0; j < n; ++j) buffer[j] = exp_negative((v[i + j] - top) * inverse);
    for (size_t j = n; j < kChunk; ++j) buffer[j] = 0;
    for (size_t j = 0; j < kChunk; j += kLanes)
      for (size_t k = 0; k < kLanes; ++k) lanes[k] += static_cast<double>(buffer[j + k]);
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

struct Candidate {
  float logit;
  TokenId id;
};
// Best first; the lower id wins a tie.
bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The `count` best, best first. One pass; the heap's worst is the bar to clear.
std::vector<Candidate> best(std::span<const float> logits, size_t count) {
  count = std::min(count, logits.size());
  std::vector<Candidate> heap;
  if (count == 0) return heap;
  heap.reserve(count);
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c{sanitized(logits[i]), static_cast<TokenId>(i)};
    if (heap.size() < count) {
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (c.logit > heap.front().logit) {  // a later id never wins a tie
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = c;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

// log softmax of single values under one distribution.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) {
    std::vector<float> clean(logits.begin(), logits.end());
    sanitize(clean);
    top_ = maximum(clean);
    if (top_ == kImpossible) return;
    log_sum_ = static_cast<float>(std::log(exp_sum(clean, top_, 1)));
  }
  [[nodiscard]] float operator()(float logit) const {
    const float value = sanitized(logit) - top_ - log_sum_;
    return value > kMinLogprob ? value : kMinLogprob;  // false for NaN too
  }

 private:
  float top_ = kImpossible;
  float log_sum_ = 0;
};

void fill_top(std::span<const float> logits, int32_t count, const LogSoftmax& softmax,
              std::vector<TokenLogprob>& out) {
  for (const Candidate& c : best(logits, static_cast<size_t>(std::max(count, 0))))
    out.push_back({c.id, softmax(c.logit)});
}

class IdSet {
 public:
  explicit IdSet(size_t vocab) : bits_((vocab + 63) / 64) {}
  bool insert(TokenId id) {
    uint64_t& word = bits_[static_cast<size_t>(id) / 64];
    const uint64_t bit = uint64_t{1} << (static_cast<size_t>(id) % 64);
    const bool fresh = (word & bit) == 0;
    word |= bit;
    return fresh;
  }

 private:
  std::vector<uint64_t> bits_;
};

bool known(TokenId id, std::span<const float> logits) {
  return id >= 0 && static_cast<size_t>(id) < logits.size();
}

void penalize(std::span<float> logits, const SamplingParams& p, const TokenHistory& history) {
  for (const auto& [id, bias] : p.logit_bias)
    if (known(id, logits)) logits[static_cast<size_t>(id)] += bias;
  if (p.repetition_penalty != 1 && p.repetition_penalty > 0) {
    IdSet seen(logits.size());
    for (const TokenId id : history.tokens) {
      if (!known(id, logits) || !seen.insert(id)) continue;
      float& x = logits[static_cast<size_t>(id)];
      x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
    }
  }
  if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
    const auto answer = history.tokens.subspan(std::min(history.prompt_tokens, history.tokens.size()));
    std::vector<TokenId> ids(answer.begin(), answer.end());
    std::sort(ids.begin(), ids.end());
    for (size_t i = 0; i < ids.size();) {
      size_t end = i;
      while (end < ids.size() && ids[end] == ids[i]) ++end;
      if (known(ids[i], logits))
        logits[static_cast<size_t>(ids[i])] -=
            p.presence_penalty + p.frequency_penalty * static_cast<float>(end - i);
      i = end;
    }
  }
}

// The kept tokens are a prefix of the order `better`: everything up to and including `last`.
struct Cut {
  Candidate last{kImpossible, std::numeric_limits<TokenId>::max()};
  [[nodiscard]] bool keeps(float logit, size_t id) const {
    return logit > last.logit || (logit == last.logit && static_cast<TokenId>(id) <= last.id);
  }
};

// Shortest prefix of `better` whose mass reaches `target`. Halves the open range by selection, so
// that flat distributions cost no full sort.
Candidate prefix_end(std::vector<Candidate>& c, double target, float top, float inverse) {
  const auto mass = [&](const Candidate& x) {
    return static_cast<double>(exp_negative((x.logit - top) * inverse));
  };
  size_t low = 0;
  size_t high = c.size();
  double before = 0;
  while (high - low > 64) {
    const size_t middle = low + (high - low) / 2;
    const auto at = [&](size_t i) { return c.begin() + static_cast<std::ptrdiff_t>(i); };
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
  std::sort(c.begin() + static_cast<std::ptrdiff_t>(low), c.begin() + static_cast<std::ptrdiff_t>(high),
            better);
  for (size_t i = low; i < high; ++i) {
    before += mass(c[i]);
    if (before >= target) return c[i];
  }
  return c[high - 1];
}

// Where top-k, top-p (of what top-k left) and min-p cut.
Cut find_cut(std::span<const float> logits, const SamplingParams& p, float top, float inverse) {
  Cut cut;
  std::vector<Candidate> candidates;
  const bool has_top_k = p.top_k > 0 && static_cast<size_t>(p.top_k) < logits.size();
  if (has_top_k) {
    candidates = best(logits, static_cast<size_t>(p.top_k));
    cut.last = candidates.back();
  }
  if (p.top_p < 1) {  // false for NaN
    const float top_p = std::max(p.top_p, 0.0F);
    double total = 0;
    if (has_top_k) {
      for (const Candidate& c : candidates)
        total += static_cast<double>(exp_negative((c.logit - top) * inverse));
    } else {
      total = exp_sum(logits, top, inverse);
      // All tokens below this bar together weigh less than 1 - top_p: the prefix lies above it.
      const double bar = total * (1.0 - static_cast<double>(top_p)) / static_cast<double>(logits.size());
      const auto lowest = static_cast<float>((std::log(bar) - 1e-3) / static_cast<double>(inverse)) + top;
      for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] >= lowest) candidates.push_back({logits[i], static_cast<TokenId>(i)});
    }
    if (!candidates.empty())
      cut.last = prefix_end(candidates, total * static_cast<double>(top_p), top, inverse);
  }
  if (p.min_p > 0) {
    const float lowest = p.min_p >= 1 ? top : top + std::log(p.min_p) / inverse;
    if (lowest > cut.last.logit) cut.last = {lowest, std::numeric_limits<TokenId>::max()};
  }
  return cut;
}

// Walks the kept tokens in id order until their mass passes u of the whole.
TokenId draw(std::span<const float> logits, const Cut& cut, float top, float inverse, double u) {
  float buffer[kChunk];
  const auto fill = [&](size_t begin, size_t n) {
    double sum = 0;
    for (size_t j = 0; j < n; ++j) {
      const float e = exp_negative((logits[begin + j] - top) * inverse);
      buffer[j] = cut.keeps(logits[begin + j], begin + j) ? e : 0.0F;
    }
    for (size_t j = 0; j < n; ++j) sum += static_cast<double>(buffer[j]);
    return sum;
  };
  std::vector<double> sums((logits.size() + kChunk - 1) / kChunk);
  double total = 0;
  for (size_t c = 0; c < sums.size(); ++c) {
    sums[c] = fill(c * kChunk, std::min(kChunk, logits.size() - c * kChunk));
    total += sums[c];
  }
  double left = u * total;
  TokenId last = first_of(logits, top);
  for (size_t c = 0; c < sums.size(); ++c) {
    if (sums[c] <= left) {
      left -= sums[c];
      continue;
    }
    const size_t n = std::min(kChunk, logits.size() - c * kChunk);
    fill(c * kChunk, n);
    for (size_t j = 0; j < n; ++j) {
      if (buffer[j] == 0) continue;
      last = static_cast<TokenId>(c * kChunk + j);
      if (static_cast<double>(buffer[j]) > left) return last;
      left -= static_cast<double>(buffer[j]);
    }
  }
  return last;  // rounding ate the rest
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint32_t philox(uint64_t seed, uint64_t position) {
  return philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
}

SampledToken sample(std::span<float> logits, const SamplingParams& params,
                    const TokenHistory& history) {
  TANDEM_CHECK(!logits.empty(), "sampling needs a vocabulary");
  SampledToken out;
  sanitize(logits);
  std::vector<float> raw;
  if (params.logprobs >= 0) raw.assign(logits.begin(), logits.end());
  penalize(logits, params, history);
  sanitize(logits);  // a bias or penalty may have overflowed
  const float top = maximum(logits);
  if (top == kImpossible || !(params.temperature >= kGreedyBelow)) {
    out.id = first_of(logits, top);
  } else {
    const float inverse = 1.0F / params.temperature;
    const Cut cut = find_cut(logits, params, top, inverse);
    const double u =
        (static_cast<double>(philox(params.seed, history.tokens.size())) + 0.5) * 0x1p-32;
    out.id = draw(logits, cut, top, inverse, u);
  }
  if (params.logprobs >= 0) {
    const LogSoftmax softmax(raw);
    out.logprob = softmax(raw[static_cast<size_t>(out.id)]);
    fill_top(raw, params.logprobs, softmax, out.top);
  }
  return out;
}

SampledToken score(std::span<const float> logits, TokenId token, int32_t top) {
  TANDEM_CHECK(known(token, logits), "scored token outside the vocabulary");
  SampledToken out;
  out.id = token;
  const LogSoftmax softmax(logits);
  out.logprob = softmax(logits[static_cast<size_t>(token)]);
  fill_top(logits, top, softmax, out.top);
  return out;
}

}  // namespace tandem::engine
