#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "tests/support/engine_harness.h"
#include "tests/support/engine_variants.h"
#include "tests/support/reference_ops.h"

namespace tandem::testing {
namespace {

using engine::SequenceInput;
using engine::StepOutput;
using ::testing::HasSubstr;

class EngineStep : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineHarness::Options options;
    options.sequences = 2;
    options.positions = 64;
    options.max_rows = 32;
    h_ = harness("llama_yarn", create_reference_ops(DType::kF32), options);
    ASSERT_NE(h_, nullptr);
    tokens_ = random_tokens(5, 1);
    input_.tokens = tokens_;
    input_.blocks = h_->blocks(0);
    input_.sampling = &greedy_;
    input_.history = {tokens_, tokens_.size()};
    greedy_.temperature = 0;
  }
  // The error's text, or "" when the step was accepted.
  std::string run() {
    auto out = h_->engine().step({&input_, 1}, pages_ ? *pages_ : h_->pages());
    if (out) return "";
    EXPECT_FALSE(out.error().detail.empty());
    return out.error().detail;
  }
  std::unique_ptr<EngineHarness> h_;
  std::vector<TokenId> tokens_;
  engine::SamplingParams greedy_;
  SequenceInput input_;
  std::optional<engine::KvPages> pages_;
};

TEST_F(EngineStep, AcceptsAGoodStep) { EXPECT_EQ(run(), ""); }

TEST_F(EngineStep, RefusesTokensOutsideTheVocabulary) {
  for (const TokenId bad : {-1, 96, 1 << 30, INT32_MIN}) {
    tokens_[3] = bad;
    EXPECT_THAT(run(), HasSubstr("token id " + std::to_string(bad)));
  }
}

TEST_F(EngineStep, RefusesPositionsPastTheContext) {
  input_.start = 252;
  EXPECT_THAT(run(), HasSubstr("past the context of 256"));
  input_.start = UINT32_MAX;  // must not wrap
  EXPECT_THAT(run(), HasSubstr("past the context"));
}

TEST_F(EngineStep, RefusesTooManyRowsAndNone) {
  tokens_ = random_tokens(33, 2);
  input_.tokens = tokens_;
  input_.history = {tokens_, 33};
  EXPECT_THAT(run(), HasSubstr("33 rows, the engine takes 32"));
  input_.tokens = {};
  EXPECT_THAT(run(), HasSubstr("has no tokens"));
  EXPECT_FALSE(h_->engine().step({}, h_->pages()));
}

TEST_F(EngineStep, RefusesMissingAndForeignBlocks) {
  input_.blocks = {};
  EXPECT_THAT(run(), HasSubstr("has 0 KV blocks and needs 1"));
  const BlockId foreign[] = {BlockId(h_->pages().blocks)};
  input_.blocks = foreign;
  EXPECT_THAT(run(), HasSubstr("outside the pool"));
}

TEST_F(EngineStep, RefusesAForeignPool) {
  pages_ = h_->pages();
  pages_->layout.head_dim *= 2;
  EXPECT_THAT(run(), HasSubstr("another model"));
  pages_ = h_->pages();
  pages_->pages = nullptr;
  EXPECT_THAT(run(), HasSubstr("no KV pool"));
  pages_ = h_->pages();
  pages_->layout.format = kv::KvFormat::kInt4;
  EXPECT_THAT(run(), HasSubstr("tail"));
}

TEST_F(EngineStep, RefusesSamplingWithoutParametersOrHistory) {
  input_.sampling = nullptr;
  EXPECT_THAT(run(), HasSubstr("how to sample"));
  input_.sampling = &greedy_;
  input_.history = {std::span(tokens_).first(4), 4};
  EXPECT_THAT(run(), HasSubstr("history has 4 tokens, its rows end at 5"));
  input_.history = {tokens_, 9};
  EXPECT_THAT(run(), HasSubstr("longer than its history"));
  input_.output = StepOutput::kScoreRows;
  input_.history = {tokens_, 5};
  input_.next_token = 96;
  EXPECT_THAT(run(), HasSubstr("next token 96"));
}

TEST_F(EngineStep, NoneGivesNothing) {
  input_.output = StepOutput::kNone;
  const auto out = h_->engine().step({&input_, 1}, h_->pages());
  ASSERT_TRUE(out);
  EXPECT_FALSE((*out)[0].token);
  EXPECT_TRUE((*out)[0].scores.empty());
  EXPECT_TRUE((*out)[0].logits.empty());
}

TEST_F(EngineStep, HookSeesEveryLayerOnceInOrder) {
  std::vector<uint32_t> seen;
  const auto out =
      h_->engine().step({&input_, 1}, h_->pages(), [&](uint32_t l) { seen.push_back(l); });
  ASSERT_TRUE(out);
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 1));
}

TEST_F(EngineStep, HookFindsTheLayersPagesWritten) {
  const engine::KvPages& kv = h_->pages();
  const std::byte* page = kv.pages + h_->blocks(0)[0].value * kv.layout.page_bytes();
  std::vector<std::byte> at_hook;
  const auto out = h_->engine().step({&input_, 1}, kv, [&](uint32_t layer) {
    if (layer == 0) at_hook.assign(page, page + kv.layout.page_bytes());
  });
  ASSERT_TRUE(out);
  EXPECT_TRUE(std::equal(at_hook.begin(), at_hook.end(), page));
  EXPECT_NE(at_hook[0], std::byte{0xa5});
}

// cases.md 18 at engine level: scores are those of the logits, the first token has none before it.
TEST_F(EngineStep, ScoresAreTheLogSoftmaxOfTheLogits) {
  const auto logits = h_->logits(tokens_);
  ASSERT_TRUE(logits);
  input_.output = StepOutput::kScoreRows;
  input_.score_top = 2;
  input_.next_token = 7;
  const auto out = h_->engine().step({&input_, 1}, h_->pages());
  ASSERT_TRUE(out) << out.error().to_string();
  const auto& scores = (*out)[0].scores;
  ASSERT_EQ(scores.size(), 5u);
  for (size_t r = 0; r < 5; ++r) {
    const TokenId next = r + 1 < 5 ? tokens_[r + 1] : 7;
    EXPECT_EQ(scores[r].id, next);
    double sum = 0;
    for (size_t v = 0; v < 96; ++v) sum += std::exp(static_cast<double>((*logits)[r * 96 + v]));
    EXPECT_NEAR(static_cast<double>(scores[r].logprob),
                static_cast<double>((*logits)[r * 96 + static_cast<size_t>(next)]) - std::log(sum),
                1e-4);
    EXPECT_EQ(scores[r].top.size(), 2u);
  }
  EXPECT_TRUE((*out)[0].token);  // sampling was given too
  input_.next_token.reset();
  input_.sampling = nullptr;
  const auto without = h_->engine().step({&input_, 1}, h_->pages());
  ASSERT_TRUE(without);
  EXPECT_EQ((*without)[0].scores.size(), 4u);
  EXPECT_FALSE((*without)[0].token);
}

TEST_F(EngineStep, BadSequenceLeavesTheOthersPagesAlone) {
  const auto before = h_->logits(tokens_);
  SequenceInput bad = input_;
  bad.start = 300;
  const SequenceInput both[] = {input_, bad};
  EXPECT_FALSE(h_->engine().step(both, h_->pages()));
  EXPECT_EQ(*h_->logits(tokens_), *before);
}

// Greedy is the argmax at any temperature below the bound, and biases reach the sampler (case 29).
TEST_F(EngineStep, BiasForcesAToken) {
  greedy_.logit_bias = {{9, 100.0F}};
  const auto out = h_->engine().step({&input_, 1}, h_->pages());
  ASSERT_TRUE(out);
  EXPECT_EQ((*out)[0].token->id, 9);
}

// ---- results depend on nothing but the sequence: every backend, every KV format ----

class EngineInvariance : public ::testing::TestWithParam<Variant> {
 protected:
  static EngineHarness::Options options() {
    EngineHarness::Options o;
    o.format = GetParam().format;
    o.max_rows = 80;
    o.sequences = 3;
    o.positions = 128;
    return o;
  }
  static std::unique_ptr<EngineHarness> start(const std::string& name) {
    const auto c = open(name);
    if (c == nullptr) return nullptr;
    return harness(name,
                   GetParam().backend.create(GetParam().weights, c->config(), limits_of(options())),
                   options());
  }
};

TEST_P(EngineInvariance, ChunksOfAPromptDoNotMatter) {
  const auto tokens = random_tokens(77, 5);
  for (const char* name : {"llama_llama3_sharded", "mistral_window"}) {
    const auto h = start(name);
    ASSERT_NE(h, nullptr);
    const auto whole = h->logits(tokens, 80);
    ASSERT_TRUE(whole) << whole.error().to_string();
    for (const uint32_t chunk : {1u, 7u, 16u, 33u}) {
      const auto parts = h->logits(tokens, chunk, 1);
      ASSERT_TRUE(parts);
      if (GetParam().backend.chunk_tolerance == 0)
        EXPECT_EQ(*parts, *whole) << name << " in chunks of " << chunk;
      else
        EXPECT_LT(distance(*parts, *whole), GetParam().chunk_tolerance())
            << name << " in chunks of " << chunk;
    }
  }
}

TEST_P(EngineInvariance, BatchCompanyDoesNotMatter) {
  const auto h = start("llama_llama3_sharded");
  ASSERT_NE(h, nullptr);
  // Backends whose prompts depend on how they are cut keep company only while they decode.
  const bool any_cut = GetParam().backend.chunk_tolerance == 0;
  engine::SamplingParams sampling;
  sampling.seed = 11;
  sampling.top_p = 0.9F;
  const auto prompt = random_tokens(21, 6);
  const auto alone = h->generate(prompt, 20, sampling);
  ASSERT_TRUE(alone) << alone.error().to_string();

  // The same request beside a prefill of changing size and another decode, in changing order.
  std::vector<TokenId> all = prompt;
  size_t done = 0;
  auto other = random_tokens(128, 7);
  uint32_t other_done = 0;
  while (all.size() < prompt.size() + 20) {
    SequenceInput mine;
    const size_t rows = std::min<size_t>(any_cut ? 9 : 80, all.size() - done);
    mine.tokens = std::span(all).subspan(done, rows);
    mine.start = static_cast<uint32_t>(done);
    mine.blocks = h->blocks(1);
    mine.tail = 1;
    done += rows;
    mine.output = done == all.size() ? StepOutput::kSample : StepOutput::kNone;
    mine.sampling = &sampling;
    mine.history = {all, prompt.size()};
    SequenceInput theirs;
    const uint32_t n = any_cut ? std::min<uint32_t>(1 + other_done % 5, 128 - other_done) : 1;
    theirs.tokens = std::span(other).subspan(other_done, n);
    theirs.start = other_done;
    theirs.blocks = h->blocks(2);
    theirs.tail = 2;
    theirs.output = StepOutput::kNone;
    if (other_done % 3 == 1) {
      theirs.output = StepOutput::kSample;
      theirs.sampling = &sampling;
      theirs.history = {std::span(other).first(other_done + n), other_done + n};
    }
    other_done += n;
    const bool first = other_done % 2 == 0;
    const bool together = any_cut || rows == 1;
    const SequenceInput both[] = {first || !together ? mine : theirs, first ? theirs : mine};
    const auto out = h->engine().step(std::span(both).first(together ? 2 : 1), h->pages());
    ASSERT_TRUE(out) << out.error().to_string();
    const auto& result = (*out)[first || !together ? 0 : 1];
    if (result.token) all.push_back(result.token->id);
  }
  EXPECT_EQ(std::vector<TokenId>(all.begin() + 21, all.end()), *alone);
}

// One sequence decodes in a step in which another's prompt goes on, with a hook that waits for
// both.
TEST_P(EngineInvariance, ADecodingRowAndAPromptShareAStep) {
  const auto h = start("llama_llama3_sharded");
  ASSERT_NE(h, nullptr);
  const auto mine = random_tokens(38, 31);
  const auto theirs = random_tokens(61, 32);
  const auto my_logits = h->logits(mine, 80, 0);
  const auto their_logits = h->logits(theirs, 80, 0);
  ASSERT_TRUE(my_logits && their_logits);
  const auto row_of = [&](const std::vector<TokenId>& tokens, uint32_t sequence, size_t from,
                          size_t rows) {
    SequenceInput in;
    in.tokens = std::span(tokens).subspan(from, rows);
    in.start = static_cast<uint32_t>(from);
    in.blocks = h->blocks(sequence);
    in.tail = sequence;
    in.output = StepOutput::kLogits;
    return in;
  };
  const SequenceInput before[] = {row_of(mine, 1, 0, 30), row_of(theirs, 2, 0, 1)};
  ASSERT_TRUE(h->engine().step(before, h->pages()));
  std::vector<float> got;
  std::vector<float> their_got;
  size_t at = 1;
  for (size_t i = 30; i < mine.size(); ++i) {
    const size_t rows = i + 1 == mine.size() ? theirs.size() - at : 2 + i % 5;
    const SequenceInput both[] = {row_of(theirs, 2, at, rows), row_of(mine, 1, i, 1)};
    std::vector<uint32_t> layers;
    const auto out =
        h->engine().step(both, h->pages(), [&](uint32_t layer) { layers.push_back(layer); });
    ASSERT_TRUE(out) << out.error().to_string();
    EXPECT_EQ(layers.size(), h->engine().config().layers);
    their_got.insert(their_got.end(), (*out)[0].logits.begin(), (*out)[0].logits.end());
    got.insert(got.end(), (*out)[1].logits.begin(), (*out)[1].logits.end());
    at += rows;
  }
  const auto expect_last = [&](const std::vector<float>& ours, const std::vector<float>& all) {
    ASSERT_LE(ours.size(), all.size());
    const std::vector<float> want(all.end() - static_cast<std::ptrdiff_t>(ours.size()), all.end());
    if (GetParam().backend.chunk_tolerance == 0)
      EXPECT_EQ(ours, want);
    else
      EXPECT_LT(distance(ours, want), GetParam().chunk_tolerance());
  };
  expect_last(got, *my_logits);
  expect_last(their_got, *their_logits);
}

TEST_P(EngineInvariance, QuantizedPagesStayCloseToExactOnes) {
  // Random weights punish four-bit KV far more than a trained model does; this only catches
  // nonsense.
  const auto tokens = random_tokens(60, 9);
  const auto exact = harness("llama_llama3_sharded", create_reference_ops(DType::kF32),
                             [] {
                               EngineHarness::Options o;
                               o.positions = 128;
                               return o;
                             }())
                         ->logits(tokens);
  const auto h = start("llama_llama3_sharded");
  ASSERT_NE(h, nullptr);
  const auto coded = h->logits(tokens);
  ASSERT_TRUE(exact && coded);
  EXPECT_LT(distance(*coded, *exact), GetParam().exact() ? 2e-4 : 0.4);
}

// However a backend samples: the tokens and scores are those that sampling.h makes of its logits.
TEST_P(EngineInvariance, TokensAndScoresAreThoseOfTheLogits) {
  const auto h = start("llama_llama3_sharded");
  ASSERT_NE(h, nullptr);
  const auto prompt = random_tokens(40, 21);
  const auto logits = h->logits(prompt);
  ASSERT_TRUE(logits) << logits.error().to_string();
  const size_t vocab = h->engine().config().vocab;
  std::vector<engine::SamplingParams> all(5);
  all[0].temperature = 0;
  all[1].top_p = 0.8F;
  all[1].logprobs = 3;
  all[2].top_k = 5;
  all[2].repetition_penalty = 1.3F;
  all[3].presence_penalty = 1.5F;
  all[3].frequency_penalty = 0.5F;
  all[3].min_p = 0.05F;
  all[4].logit_bias = {{7, 3.0F}, {9, -100.0F}};
  for (engine::SamplingParams& p : all) p.seed = 77;
  for (const engine::SamplingParams& params : all) {
    SequenceInput in;
    in.tokens = prompt;
    in.blocks = h->blocks(1);
    in.tail = 1;
    in.output = StepOutput::kScoreRows;
    in.score_top = 2;
    in.sampling = &params;
    in.history = {prompt, 30, 5};
    const auto out = h->engine().step({&in, 1}, h->pages());
    ASSERT_TRUE(out) << out.error().to_string();
    const auto& scores = (*out)[0].scores;
    ASSERT_EQ(scores.size(), prompt.size() - 1);
    for (size_t r = 0; r + 1 < prompt.size(); ++r) {
      const auto wanted =
          engine::score(std::span(*logits).subspan(r * vocab, vocab), prompt[r + 1], 2);
      EXPECT_NEAR(scores[r].logprob, wanted.logprob, 1e-3) << r;
      ASSERT_EQ(scores[r].top.size(), 2u);
      EXPECT_EQ(scores[r].top[0].id, wanted.top[0].id) << r;
    }
    std::vector<float> last(logits->end() - static_cast<std::ptrdiff_t>(vocab), logits->end());
    const auto wanted = engine::sample(last, params, in.history);
    ASSERT_TRUE((*out)[0].token);
    EXPECT_EQ((*out)[0].token->id, wanted.id);
    if (params.logprobs >= 0) {
      EXPECT_NEAR((*out)[0].token->logprob, wanted.logprob, 1e-3);
    }
    EXPECT_EQ((*out)[0].token->top.size(), wanted.top.size());
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineInvariance);  // a machine without a card
INSTANTIATE_TEST_SUITE_P(Formats, EngineInvariance, ::testing::ValuesIn(variants()),
                         [](const auto& instance) { return instance.param.name; });

// More rows than logits are made for at once: the chunks must line up.
TEST(EngineLogits, ManyRowsComeInOrder) {
  EngineHarness::Options options;
  options.max_rows = 200;
  const auto h = harness("llama_yarn", create_reference_ops(DType::kF32), options);
  const auto tokens = random_tokens(200, 3);
  const auto at_once = h->logits(tokens, 200);
  const auto in_steps = h->logits(tokens, 50);
  ASSERT_TRUE(at_once && in_steps);
  EXPECT_EQ(*at_once, *in_steps);
}

TEST(EngineCreate, HonoursMaxContextAndNeedsRows) {
  const auto c = open("llama_yarn");
  auto ops = create_reference_ops(DType::kF32);
  EXPECT_FALSE(engine::Engine::create(*c, *ops, {0, 0}));
  const auto e = engine::Engine::create(*c, *ops, {8, 4});
  ASSERT_TRUE(e);
  EXPECT_EQ((*e)->max_rows(), 8u);
}

// A dummy checkpoint is a model like any other: same seed same weights, finite logits.
TEST(EngineCreate, RunsDummyWeights) {
  model::CheckpointOptions options;
  options.format = model::LoadFormat::kDummy;
  std::vector<std::vector<float>> runs;
  for (const uint64_t seed : {1u, 1u, 2u}) {
    options.dummy_seed = seed;
    const auto c = model::Checkpoint::open(test_data("golden/qwen3_moe_sparse"), options);
    ASSERT_TRUE(c) << c.error().to_string();
    auto h = EngineHarness::create(**c, create_reference_ops(DType::kF32), {});
    ASSERT_TRUE(h);
    runs.push_back(*(*h)->logits(random_tokens(9, 1)));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
  for (const float x : runs[0]) ASSERT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace tandem::testing
