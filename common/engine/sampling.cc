#include "common/engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/engine/logit_scan.h"

namespace tandem::engine {
namespace {

constexpr float kGreedyBelow = 1e-5F;

TokenId first_of(std::span<const float> v, float value) {
  const auto it = std::find(v.begin(), v.end(), value);
  return it == v.end() ? 0 : static_cast<TokenId>(it - v.begin());
}

// log softmax of single values under one distribution.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) {  // sanitized
    top_ = find_range(logits).top;
    if (top_ == kImpossible) return;
    log_sum_ = static_cast<float>(std::log(exp_sum(logits, top_, 1)));
  }
  [[nodiscard]] float operator()(float logit) const {
    const float value = logit - top_ - log_sum_;
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
    const auto answer =
        history.tokens.subspan(std::min(history.prompt_tokens, history.tokens.size()));
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

// Where top-k, top-p (of what top-k left) and min-p cut.
Cut find_cut(std::span<const float> logits, const SamplingParams& p, LogitRange range,
             float inverse) {
  Cut cut;
  const bool has_top_k = p.top_k > 0 && static_cast<size_t>(p.top_k) < logits.size();
  const bool has_top_p = p.top_p < 1;  // false for NaN
  const auto share = static_cast<double>(std::max(p.top_p, 0.0F));
  if (has_top_k) {
    std::vector<Candidate> candidates = best(logits, static_cast<size_t>(p.top_k));
    cut.last = has_top_p ? mass_prefix(candidates, range.top, inverse, share) : candidates.back();
  } else if (has_top_p) {
    cut.last = mass_prefix(logits, range, inverse, share);
  }
  if (p.min_p > 0) {
    const float lowest = p.min_p >= 1 ? range.top : range.top + std::log(p.min_p) / inverse;
    if (lowest > cut.last.logit) cut.last = {lowest, std::numeric_limits<TokenId>::max()};
  }
  return cut;
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
  const LogitRange range = find_range(logits);
  const float top = range.top;
  if (top == kImpossible || !(params.temperature >= kGreedyBelow)) {
    out.id = first_of(logits, top);
  } else {
    // Never 0, so that an impossible logit stays one after scaling.
    const float inverse = 1.0F / std::min(params.temperature, 1e30F);
    const Cut cut = find_cut(logits, params, range, inverse);
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
  std::vector<float> clean(logits.begin(), logits.end());
  sanitize(clean);
  const LogSoftmax softmax(clean);
  out.logprob = softmax(clean[static_cast<size_t>(token)]);
  fill_top(clean, top, softmax, out.top);
  return out;
}

}  // namespace tandem::engine
