#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/engine_variants.h"

// Several tokens of a sequence behind a prefix, in one step that is made for it: verification of
// guesses. On every backend and KV format.
namespace tandem::testing {
namespace {

using engine::SequenceInput;
using engine::StepOutput;

constexpr const char* kPlain = "llama_llama3_sharded";
constexpr const char* kWindowed = "mistral_window";

class VerifyRows : public ::testing::TestWithParam<Variant> {
 protected:
  // An engine made for so many sequences and rows of each, with pages for four sequences.
  static std::unique_ptr<EngineHarness> start(const std::string& name, uint32_t sequences = 4,
                                              uint32_t verify_rows = 16) {
    EngineHarness::Options options;
    options.format = GetParam().format;
    options.max_rows = 80;
    options.sequences = 4;
    options.positions = 128;
    options.verify_rows = verify_rows;
    Backend::Limits limits = limits_of(options);
    limits.sequences = sequences;
    const auto c = open(name);
    if (c == nullptr) return nullptr;
    return harness(name, GetParam().backend.create(GetParam().weights, c->config(), limits),
                   options);
  }
  static SequenceInput input(EngineHarness& h, const std::vector<TokenId>& tokens,
                             uint32_t sequence, size_t from, size_t rows, StepOutput output) {
    SequenceInput in;
    in.tokens = std::span(tokens).subspan(from, rows);
    in.start = static_cast<uint32_t>(from);
    in.blocks = h.blocks(sequence);
    in.tail = sequence;
    in.output = output;
    return in;
  }
  // The first tokens of a sequence.
  static void fill(EngineHarness& h, const std::vector<TokenId>& tokens, uint32_t sequence,
                   size_t count) {
    const SequenceInput in = input(h, tokens, sequence, 0, count, StepOutput::kNone);
    const auto out = h.engine().step({&in, 1}, h.pages());
    ASSERT_TRUE(out) << out.error().to_string();
  }
  // Logits behind `prefix`, `rows` at a time.
  static std::vector<float> logits(EngineHarness& h, const std::vector<TokenId>& tokens,
                                   uint32_t sequence, size_t prefix, size_t rows) {
    std::vector<float> all;
    fill(h, tokens, sequence, prefix);
    for (size_t at = prefix; at < tokens.size(); at += rows) {
      const SequenceInput in =
          input(h, tokens, sequence, at, std::min(rows, tokens.size() - at), StepOutput::kLogits);
      const auto out = h.engine().step({&in, 1}, h.pages());
      EXPECT_TRUE(out) << (out ? "" : out.error().to_string());
      if (!out) break;
      all.insert(all.end(), (*out)[0].logits.begin(), (*out)[0].logits.end());
    }
    return all;
  }
  // What the same rows give in steps of up to `rows` rows.
  static void expect_same(const std::vector<float>& got, const std::vector<float>& want,
                          size_t rows, const std::string& what) {
    if (rows <= GetParam().backend.same_bits_rows)
      EXPECT_EQ(got, want) << what;
    else
      expect_near(got, want, what);
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                          const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    if (GetParam().backend.chunk_tolerance == 0)
      EXPECT_EQ(got, want) << what;
    else
      EXPECT_LT(distance(got, want), GetParam().chunk_tolerance()) << what;
  }
};

// The same bits while nothing hides keys; a window moves the cuts of what a card adds up.
TEST_P(VerifyRows, RowsTogetherAreRowsOneByOne) {
  const auto tokens = random_tokens(69, 41);
  for (const char* name : {kPlain, kWindowed}) {
    const auto h = start(name);
    ASSERT_NE(h, nullptr);
    const auto one = logits(*h, tokens, 0, 37, 1);
    for (const size_t rows : {2U, 3U, 5U, 8U, 16U}) {
      const auto several = logits(*h, tokens, 1, 37, rows);
      const std::string what = std::string(name) + ", " + std::to_string(rows) + " rows";
      if (name == std::string(kPlain))
        expect_same(several, one, rows, what);
      else
        expect_near(several, one, what);
    }
  }
}

TEST_P(VerifyRows, AgreeWithThePromptAtOnce) {
  const auto tokens = random_tokens(75, 42);
  for (const char* name : {kPlain, kWindowed}) {
    const auto h = start(name);
    ASSERT_NE(h, nullptr);
    const auto whole = h->logits(tokens, 80, 0);
    ASSERT_TRUE(whole) << whole.error().to_string();
    const size_t vocab = h->engine().config().vocab;
    const std::vector<float> want(whole->begin() + static_cast<std::ptrdiff_t>(27 * vocab),
                                  whole->end());
    expect_near(logits(*h, tokens, 1, 27, 16), want, name);
  }
}

// Sequences of 4, 3 and 1 rows together.
TEST_P(VerifyRows, CompanyDoesNotMatter) {
  const auto h = start(kPlain);
  ASSERT_NE(h, nullptr);
  const size_t prefixes[] = {28, 41, 15};
  const size_t rows[] = {4, 3, 1};
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> alone;
  for (uint32_t s = 0; s < 3; ++s) {
    tokens.push_back(random_tokens(prefixes[s] + rows[s], 50 + s));
    alone.push_back(logits(*h, tokens[s], 3, prefixes[s], rows[s]));
    fill(*h, tokens[s], s, prefixes[s]);
  }
  std::vector<SequenceInput> inputs;
  for (const uint32_t s : {1U, 0U, 2U})
    inputs.push_back(input(*h, tokens[s], s, prefixes[s], rows[s], StepOutput::kLogits));
  const auto out = h->engine().step(inputs, h->pages());
  ASSERT_TRUE(out) << out.error().to_string();
  expect_same((*out)[0].logits, alone[1], 8, "3 rows");
  expect_same((*out)[1].logits, alone[0], 8, "4 rows");
  expect_same((*out)[2].logits, alone[2], 8, "1 row");

  // Beside a prompt, with a hook.
  const auto prompt = random_tokens(45, 60);
  const auto prompt_alone = h->logits(prompt, 80, 3);
  ASSERT_TRUE(prompt_alone);
  for (uint32_t s = 0; s < 3; ++s) fill(*h, tokens[s], s, prefixes[s]);
  inputs.push_back(input(*h, prompt, 3, 0, 45, StepOutput::kLogits));
  std::rotate(inputs.begin(), inputs.end() - 1, inputs.end());
  std::vector<uint32_t> layers;
  const auto mixed =
      h->engine().step(inputs, h->pages(), [&](uint32_t layer) { layers.push_back(layer); });
  ASSERT_TRUE(mixed) << mixed.error().to_string();
  EXPECT_EQ(layers.size(), h->engine().config().layers);
  expect_near((*mixed)[0].logits, *prompt_alone, "prompt");
  expect_near((*mixed)[1].logits, alone[1], "3 rows");
  expect_near((*mixed)[2].logits, alone[0], "4 rows");
  expect_near((*mixed)[3].logits, alone[2], "1 row");
}

// More rows than are recorded together: 4 sequences of 16 with a prompt behind them.
TEST_P(VerifyRows, ManyRowsAgreeWithThePromptAtOnce) {
  const auto h = start(kPlain);
  ASSERT_NE(h, nullptr);
  const size_t vocab = h->engine().config().vocab;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> want;
  for (uint32_t s = 0; s < 4; ++s) {
    tokens.push_back(random_tokens(20 + 7 * s + 16, 70 + s));
    const auto whole = h->logits(tokens[s], 80, s);
    ASSERT_TRUE(whole);
    want.emplace_back(whole->end() - static_cast<std::ptrdiff_t>(16 * vocab), whole->end());
    fill(*h, tokens[s], s, 20 + 7 * s);
  }
  std::vector<SequenceInput> inputs;
  for (uint32_t s = 0; s < 4; ++s)
    inputs.push_back(input(*h, tokens[s], s, 20 + 7 * s, 16, StepOutput::kLogits));
  const auto out = h->engine().step(inputs, h->pages());
  ASSERT_TRUE(out) << out.error().to_string();
  for (uint32_t s = 0; s < 4; ++s)
    expect_near((*out)[s].logits, want[s], "sequence " + std::to_string(s));
}

// Engines that verify fewer rows in all than the smallest step that a card records for it has:
// rows of one sequence, as many together as the engine was made for, and twice as many.
TEST_P(VerifyRows, SmallEnginesVerifyToo) {
  struct Made {
    uint32_t sequences;
    uint32_t rows;
  };
  for (const auto& [sequences, rows] : {Made{1, 4}, Made{1, 2}, Made{2, 2}}) {
    SCOPED_TRACE(::testing::Message() << "made for " << sequences << " x " << rows << " rows");
    const auto h = start(kPlain, sequences, rows);
    ASSERT_NE(h, nullptr);
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<float>> one;
    for (uint32_t s = 0; s < 2 * sequences; ++s) {
      const size_t prefix = 28 + 5 * s;
      tokens.push_back(random_tokens(prefix + rows, 65 + s));
      one.push_back(logits(*h, tokens[s], s, prefix, 1));
      for (uint32_t together = 2; together <= rows; ++together)
        expect_same(logits(*h, tokens[s], s, prefix, together), one[s], together,
                    "sequence " + std::to_string(s) + ", " + std::to_string(together) + " rows");
    }
    for (const uint32_t count : {sequences, 2 * sequences}) {
      std::vector<SequenceInput> inputs;
      for (uint32_t s = 0; s < count; ++s) {
        fill(*h, tokens[s], s, 28 + 5 * s);
        inputs.push_back(input(*h, tokens[s], s, 28 + 5 * s, rows, StepOutput::kLogits));
      }
      const auto out = h->engine().step(inputs, h->pages());
      ASSERT_TRUE(out) << out.error().to_string();
      for (uint32_t s = 0; s < count; ++s) {
        const std::string what = std::to_string(s) + " of " + std::to_string(count);
        if (count == sequences)
          expect_same((*out)[s].logits, one[s], count * rows, what);
        else  // a card takes these for prompts
          expect_near((*out)[s].logits, one[s], what);
      }
    }
  }
}

// Penalties count what a row follows, guesses before it included and those behind it not.
TEST_P(VerifyRows, EveryRowIsSampledAsItWouldBeAlone) {
  const auto h = start(kPlain);
  ASSERT_NE(h, nullptr);
  const auto tokens = random_tokens(40, 80);
  std::vector<engine::SamplingParams> all(3);
  all[0].temperature = 0;
  all[1].top_p = 0.9F;
  all[1].logprobs = 2;
  all[2].repetition_penalty = 1.4F;
  all[2].presence_penalty = 1.0F;
  all[2].logit_bias = {{7, 2.0F}};
  for (engine::SamplingParams& p : all) {
    p.seed = 123;
    fill(*h, tokens, 1, 33);
    SequenceInput in = input(*h, tokens, 1, 33, 7, StepOutput::kSampleRows);
    in.sampling = &p;
    in.history = {tokens, 30, 9};
    const auto out = h->engine().step({&in, 1}, h->pages());
    ASSERT_TRUE(out) << out.error().to_string();
    EXPECT_FALSE((*out)[0].token);
    ASSERT_EQ((*out)[0].tokens.size(), 7u);
    for (size_t r = 0; r < 7; ++r) {
      SequenceInput single = input(*h, tokens, 1, 33 + r, 1, StepOutput::kSample);
      single.sampling = &p;
      single.history = {std::span(tokens).first(34 + r), 30, 9};
      const auto alone = h->engine().step({&single, 1}, h->pages());
      ASSERT_TRUE(alone) << alone.error().to_string();
      const auto& want = *(*alone)[0].token;
      const auto& got = (*out)[0].tokens[r];
      EXPECT_EQ(got.id, want.id) << r;
      EXPECT_NEAR(got.logprob, want.logprob, 1e-4) << r;
      EXPECT_EQ(got.top.size(), want.top.size());
    }
  }
}

// Penalties after wrong guesses: those must not count, nor what was drawn behind them.
TEST_P(VerifyRows, PenaltiesForgetWrongGuesses) {
  const auto h = start(kPlain);
  ASSERT_NE(h, nullptr);
  auto right = random_tokens(50, 81);
  // Two kinds of tokens: a count that is off by one guess shows.
  for (size_t i = 20; i < right.size(); ++i) right[i] = right[20 + i % 2];
  engine::SamplingParams p;
  p.temperature = 0;
  p.repetition_penalty = 1.2F;
  p.frequency_penalty = 3.0F;
  fill(*h, right, 1, 32);
  fill(*h, right, 2, 32);
  for (size_t at = 32; at < 40; at += 2) {  // within a page, see below
    std::vector<TokenId> guess(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(at + 2));
    guess.insert(guess.end(), 4, right[20]);
    SequenceInput in = input(*h, guess, 1, at, 6, StepOutput::kSampleRows);
    in.sampling = &p;
    in.history = {guess, 30, 9};
    const auto out = h->engine().step({&in, 1}, h->pages());
    ASSERT_TRUE(out) << out.error().to_string();
    for (size_t r = 0; r < 2; ++r) {  // only the first guess was right
      SequenceInput single = input(*h, right, 2, at + r, 1, StepOutput::kSample);
      single.sampling = &p;
      single.history = {std::span(right).first(at + r + 1), 30};
      const auto alone = h->engine().step({&single, 1}, h->pages());
      ASSERT_TRUE(alone) << alone.error().to_string();
      EXPECT_EQ((*out)[0].tokens[r].id, (*alone)[0].token->id) << at << " " << r;
    }
  }
}

// The guesses were wrong: the sequence goes on with other tokens at their positions. Where pages
// are encoded when they are full, guesses must not fill one: its rows are then gone.
TEST_P(VerifyRows, WrongGuessesLeaveNoTrace) {
  const auto h = start(kPlain);
  ASSERT_NE(h, nullptr);
  const auto right = random_tokens(60, 90);
  const auto want = logits(*h, right, 0, 30, 1);
  const size_t vocab = h->engine().config().vocab;
  fill(*h, right, 1, 30);
  const bool seals = h->pages().layout.needs_tail();
  std::vector<float> got;
  for (size_t at = 30; at < 44; ++at) {
    const size_t room = 16 - at % 16;
    const size_t rows = !seals ? 8 : std::clamp<size_t>(room - 1, 1, 8);
    std::vector<TokenId> guess(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(at + 1));
    const auto wrong = random_tokens(rows - 1, 91 + at);
    guess.insert(guess.end(), wrong.begin(), wrong.end());
    const SequenceInput in = input(*h, guess, 1, at, rows, StepOutput::kLogits);
    const auto out = h->engine().step({&in, 1}, h->pages());
    ASSERT_TRUE(out) << out.error().to_string();
    got.insert(got.end(), (*out)[0].logits.begin(),
               (*out)[0].logits.begin() + static_cast<std::ptrdiff_t>(vocab));
  }
  EXPECT_EQ(got, std::vector<float>(want.begin(),
                                    want.begin() + static_cast<std::ptrdiff_t>(got.size())));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VerifyRows);  // a machine without a card
INSTANTIATE_TEST_SUITE_P(Formats, VerifyRows, ::testing::ValuesIn(variants()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tandem::testing
