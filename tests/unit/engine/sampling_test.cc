#include "common/engine/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace tandem::engine {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampledToken run(std::vector<float> logits, const SamplingParams& params,
                 std::vector<TokenId> history = {}, size_t prompt = 0) {
  return sample(logits, params, {history, prompt});
}

std::vector<float> random_logits(size_t n, uint64_t seed, float spread) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& x : out) x = normal(engine);
  return out;
}

// The definition, spelled out: sort everything, cut by top-k, top-p and min-p, walk by id.
TokenId by_definition(const std::vector<float>& logits, const SamplingParams& p,
                      uint64_t position) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double t = static_cast<double>(p.temperature);
  const double top = static_cast<double>(logits[order[0]]);
  const auto mass = [&](size_t i) { return std::exp((static_cast<double>(logits[i]) - top) / t); };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < n) order.resize(static_cast<size_t>(p.top_k));
  if (p.top_p < 1) {
    double total = 0;
    for (const size_t i : order) total += mass(i);
    double sum = 0;
    size_t keep = 0;
    while (keep < order.size()) {
      sum += mass(order[keep++]);
      if (sum >= static_cast<double>(p.top_p) * total) break;
    }
    order.resize(keep);
  }
  std::erase_if(order, [&](size_t i) { return mass(i) < static_cast<double>(p.min_p); });
  std::sort(order.begin(), order.end());
  double total = 0;
  for (const size_t i : order) total += mass(i);
  double left = (static_cast<double>(philox(p.seed, position)) + 0.5) / 4294967296.0 * total;
  for (const size_t i : order) {
    left -= mass(i);
    if (left < 0) return static_cast<TokenId>(i);
  }
  return static_cast<TokenId>(order.back());
}

// Known answers of Random123 1.14.0, tests/kat_vectors, "philox4x32 10".
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(
      philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
  EXPECT_EQ(philox(0, 0), 0x6627e8d5u);
}

TEST(Philox, DependsOnEveryBitOfSeedAndPosition) {
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(philox(uint64_t{1} << bit, 5), philox(0, 5)) << bit;
    EXPECT_NE(philox(9, uint64_t{1} << bit), philox(9, 0)) << bit;
  }
}

TEST(Sampling, GreedyTakesTheLowestIdOfATie) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(run({1, 5, 3, 5, 5}, greedy).id, 1);
  EXPECT_EQ(run({-kInf, -kInf, -2}, greedy).id, 2);
}

TEST(Sampling, MatchesTheDefinition) {
  std::mt19937_64 rng(3);
  const auto pick = [&](std::initializer_list<float> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(rng() % values.size()));
  };
  for (int round = 0; round < 400; ++round) {
    const size_t vocab = 1 + rng() % 3000;
    const auto logits = random_logits(vocab, rng(), pick({0.1F, 1, 4, 20}));
    SamplingParams p;
    p.temperature = pick({0.1F, 0.7F, 1, 2});
    p.top_k = static_cast<int32_t>(pick({0, 0, 1, 2, 40, 1000000}));
    p.top_p = pick({1, 1, 0, 0.1F, 0.5F, 0.9F, 0.999F});
    p.min_p = pick({0, 0, 0.05F, 0.5F, 1});
    p.seed = rng();
    const std::vector<TokenId> history(rng() % 50, 0);
    EXPECT_EQ(run(logits, p, history).id, by_definition(logits, p, history.size()))
        << "round " << round << " vocab " << vocab << " t " << p.temperature << " k " << p.top_k
        << " p " << p.top_p << " min " << p.min_p;
  }
}

TEST(Sampling, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = {0, 1, 2, -1};
  const double sum = std::exp(0.0) + std::exp(1.0) + std::exp(2.0) + std::exp(-1.0);
  SamplingParams p;
  std::vector<int> counts(4);
  constexpr int kDraws = 40000;
  std::vector<TokenId> history;
  for (int i = 0; i < kDraws; ++i) {
    p.seed = static_cast<uint64_t>(i);
    ++counts[static_cast<size_t>(run(logits, p, history).id)];
  }
  for (size_t i = 0; i < 4; ++i) {
    const double expected = std::exp(static_cast<double>(logits[i])) / sum;
    EXPECT_NEAR(counts[i] / static_cast<double>(kDraws), expected, 0.01) << i;
  }
}

TEST(Sampling, SameSeedAndPositionSameToken) {
  const auto logits = random_logits(5000, 1, 1);
  SamplingParams p;
  p.seed = 42;
  const std::vector<TokenId> a(10, 1);
  const std::vector<TokenId> b(10, 2);  // other tokens, same position: no penalty looks at them
  EXPECT_EQ(run(logits, p, a).id, run(logits, p, b).id);
  std::vector<TokenId> ids;
  for (size_t n = 0; n < 20; ++n) ids.push_back(run(logits, p, std::vector<TokenId>(n, 1)).id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  EXPECT_GT(ids.size(), 10u);  // another position, another draw
}

// cases.md 38: tiny temperature and tiny top_p.
TEST(Sampling, TinyTemperatureAndTopPGiveTheGreedyToken) {
  const auto logits = random_logits(1000, 8, 3);
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  for (const float t : {1e-4F, 1e-7F, 1e-45F, 0.0F})
    for (const float top_p : {1e-4F, 0.0F, 1.0F})
      for (uint64_t seed = 0; seed < 20; ++seed) {
        SamplingParams p;
        p.temperature = t;
        p.top_p = top_p;
        p.seed = seed;
        EXPECT_EQ(run(logits, p).id, best) << t << ' ' << top_p;
      }
  SamplingParams hot;
  hot.temperature = 2;
  for (const float top_p : {1e-4F, 0.0F}) {
    hot.top_p = top_p;
    EXPECT_EQ(run(logits, hot).id, best) << top_p;
  }
}

TEST(Sampling, SurvivesBrokenLogitsAndParameters) {
  SamplingParams p;
  p.logprobs = 3;
  for (const auto& logits : std::vector<std::vector<float>>{
           {kNan, kNan}, {-kInf, -kInf}, {kInf, 1, kInf}, {kNan, 2, -kInf}, {3e38F, -3e38F}, {0}}) {
    for (const float t : {0.0F, 1e-45F, 1.0F, kNan, kInf}) {
      p.temperature = t;
      const SampledToken out = run(logits, p);
      EXPECT_GE(out.id, 0);
      EXPECT_LT(static_cast<size_t>(out.id), logits.size());
      EXPECT_TRUE(std::isfinite(out.logprob));
      for (const auto& alternative : out.top) EXPECT_TRUE(std::isfinite(alternative.logprob));
    }
  }
  p.temperature = 1;
  EXPECT_EQ(run({kNan, 2, -kInf}, p).id, 1);  // the impossible ones are never drawn
  p.top_p = kNan;
  p.min_p = kNan;
  p.repetition_penalty = 0;
  p.logit_bias = {{-1, 5.0F}, {1000000, 5.0F}, {0, kInf}};
  EXPECT_EQ(run({1, 2, 3}, p, {-7, 99999, 1}).id, 0);
}

TEST(Sampling, TopKOneIsTheBestEvenWhenTheDistributionIsFlat) {
  std::vector<float> logits(100, 1.0F);
  logits[57] = std::nextafter(1.0F, 2.0F);
  SamplingParams p;
  p.temperature = 2;
  p.top_k = 1;
  for (p.seed = 0; p.seed < 50; ++p.seed) EXPECT_EQ(run(logits, p).id, 57);
}

// cases.md 39: which tokens a penalty counts.
TEST(Sampling, PresenceAndFrequencyCountTheAnswerOnlyRepetitionThePromptToo) {
  SamplingParams p;
  p.temperature = 0;
  const std::vector<float> logits = {0, 4, 3, -1};
  const std::vector<TokenId> prompt = {1, 1, 1, 1};
  p.presence_penalty = 2;
  EXPECT_EQ(run(logits, p, prompt, 4).id, 1);
  p.presence_penalty = 0;
  p.frequency_penalty = 2;
  EXPECT_EQ(run(logits, p, prompt, 4).id, 1);
  p.frequency_penalty = 0;
  p.repetition_penalty = 1.9F;
  EXPECT_EQ(run(logits, p, prompt, 4).id, 2);  // 4 / 1.9 < 3
  // Once they are part of the answer the other two count.
  p.repetition_penalty = 1;
  p.presence_penalty = 2;
  EXPECT_EQ(run(logits, p, {0, 1}, 1).id, 2);
  p.presence_penalty = 0;
  p.frequency_penalty = 0.4F;
  EXPECT_EQ(run(logits, p, {0, 1, 1}, 1).id, 1);     // 4 - 0.8 > 3
  EXPECT_EQ(run(logits, p, {0, 1, 1, 1}, 1).id, 2);  // 4 - 1.2 < 3
}

TEST(Sampling, RepetitionDividesPositiveAndMultipliesNegativeOnce) {
  SamplingParams p;
  p.temperature = 0;
  p.repetition_penalty = 2;
  // Each id once, however often it occurs: 6/2 = 3 beats 2.9, and -1*2 loses against -1.5.
  EXPECT_EQ(run({6, 2.9F}, p, {0, 0, 0}, 1).id, 0);
  EXPECT_EQ(run({-1, -1.5F}, p, {0}, 1).id, 1);
}

TEST(Sampling, BiasComesBeforePenaltiesAndDecidesAlone) {
  SamplingParams p;
  p.temperature = 0;
  p.logit_bias = {{3, 100.0F}};
  EXPECT_EQ(run({9, 1, 1, -5}, p).id, 3);
  p.logit_bias = {{0, -100.0F}};
  EXPECT_EQ(run({9, 1, 2, -5}, p).id, 2);
  // Bias first: (1 + 5) / 2 = 3 loses against 3.5; the other order would give 1/2 + 5.
  p.logit_bias = {{0, 5.0F}};
  p.repetition_penalty = 2;
  EXPECT_EQ(run({1, 3.5F}, p, {0}, 1).id, 1);
}

// cases.md 17: minus infinity never shows, whatever filters and biases are on.
TEST(Sampling, LogprobsAreOfTheRawDistributionFiniteAndSorted) {
  SamplingParams p;
  p.temperature = 0.01F;
  p.top_p = 0.01F;
  p.top_k = 1;
  p.logit_bias = {{2, -100.0F}};
  p.repetition_penalty = 1.9F;
  p.logprobs = 5;
  const std::vector<float> logits = {1, 2, 3, -kInf, 0};
  const SampledToken out = run(logits, p, {1}, 1);
  const double sum = std::exp(1.0) + std::exp(2.0) + std::exp(3.0) + 1;
  ASSERT_EQ(out.top.size(), 5u);
  EXPECT_THAT((std::vector<TokenId>{out.top[0].id, out.top[1].id, out.top[2].id, out.top[3].id,
                                    out.top[4].id}),
              ElementsAre(2, 1, 0, 4, 3));
  EXPECT_NEAR(static_cast<double>(out.top[0].logprob), 3 - std::log(sum), 1e-5);
  EXPECT_NEAR(static_cast<double>(out.top[3].logprob), 0 - std::log(sum), 1e-5);
  EXPECT_EQ(out.top[4].logprob, kMinLogprob);
  EXPECT_EQ(out.id, 1);  // 2 is biased away; 2/1.9 still beats 1
  EXPECT_NEAR(static_cast<double>(out.logprob), 2 - std::log(sum), 1e-5);
}

TEST(Sampling, LogprobsZeroGivesTheTokenAloneAndMinusOneNothing) {
  SamplingParams p;
  p.temperature = 0;
  p.logprobs = 0;
  SampledToken out = run({0, 0}, p);
  EXPECT_TRUE(out.top.empty());
  EXPECT_NEAR(out.logprob, std::log(0.5F), 1e-6F);
  p.logprobs = 1000;  // more than there are
  EXPECT_EQ(run({0, 0}, p).top.size(), 2u);
}

TEST(Sampling, ScoreIsTheLogSoftmax) {
  const auto logits = random_logits(49152, 5, 4);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  for (const TokenId id : {0, 17, 49151}) {
    const SampledToken s = score(logits, id, 2);
    EXPECT_EQ(s.id, id);
    EXPECT_NEAR(static_cast<double>(s.logprob),
                static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum), 2e-5);
    ASSERT_EQ(s.top.size(), 2u);
    EXPECT_GE(s.top[0].logprob, s.top[1].logprob);
  }
}

}  // namespace
}  // namespace tandem::engine
