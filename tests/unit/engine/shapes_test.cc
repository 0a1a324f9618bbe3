// Models of random shapes with random weights, through random steps: whatever a backend returns
// must be what the CPU engine returns in float32, which golden_test holds against transformers.
//
// A failure names its seed: TANDEM_SHAPES_FIRST=<seed> TANDEM_SHAPES=1 runs that alone. For longer
// runs TANDEM_SHAPES is the number of seeds and TANDEM_SHAPES_SECONDS the time after which the rest
// is skipped; TANDEM_SHAPES_LOG=1 prints a line for each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "tests/support/engine_variants.h"
#include "tests/support/random_model.h"
#include "tests/support/rounded_ops.h"

namespace tandem::testing {
namespace {

using engine::SequenceInput;
using engine::StepOutput;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// How a model is served.
struct Scene {
  EngineHarness::Options options;
  std::vector<uint32_t> prompts;  // rows of each sequence's
};

Scene random_scene(Dice& dice, const model::ModelConfig& config, const Backend& backend,
                   bool suits_fp8) {
  Scene scene;
  EngineHarness::Options& o = scene.options;
  o.positions = config.max_positions;
  o.format = backend.formats[dice.below(static_cast<uint32_t>(backend.formats.size()))];
  if (dice.chance(40)) o.format = kv::KvFormat::kBf16;
  o.max_rows = dice.of({1U, 3U, 8U, 16U, 17U, 33U, 48U, 49U, 64U, 65U, 100U, 128U, 200U, 300U});
  o.sequences = dice.of({1U, 1U, 2U, 3U, 5U, 7U, 8U, 9U, 9U, 16U, 17U, 32U, 33U, 48U, 49U, 65U});
  if (dice.chance(5)) {
    o.sequences = dice.of({129U, 255U});
    o.max_rows = 300;
  }
  if (config.vocab > 20000 || backend.slow) o.sequences = std::min(o.sequences, 17U);
  if (dice.chance(35)) {
    o.verify_rows = dice.of({2U, 3U, 4U, 5U, 8U, 15U, 16U});
    o.sequences = dice.of({1U, 1U, 2U, 3U, 8U, 17U});
  }
  // Pages that are filled with dirt in a moment.
  const uint64_t values = uint64_t{config.layers} * config.kv_heads * config.head_dim * o.positions;
  const uint64_t pools = std::clamp<uint64_t>(10'000'000 / values, 1, o.sequences);
  o.sequences = static_cast<uint32_t>(pools);
  o.fp8_weights = suits_fp8 && backend.has_fp8;
  // What the CPU multiplies in a fraction of a second.
  uint64_t weights = uint64_t{config.vocab} * config.hidden;
  for (const model::TensorSpec& tensor : model::expected_tensors(config)) {
    const bool expert = tensor.name.find(".experts.") != std::string::npos;
    if (tensor.shape.size() == 2 && !expert)
      weights += static_cast<uint64_t>(tensor.shape[0] * tensor.shape[1]);
  }
  const uint64_t affordable = (backend.slow ? 100'000'000U : 400'000'000U) / weights;
  auto left = static_cast<uint32_t>(std::clamp<uint64_t>(affordable, 20, 400));
  // Attention of contexts that are cut into several parts, where the CPU does it in a second.
  const uint64_t attention =
      uint64_t{config.layers} * config.heads * config.head_dim * o.positions * o.positions;
  const bool is_light = weights <= 1'500'000 && attention <= 25'000'000'000;
  const bool is_long = is_light && !backend.slow && o.positions > 1000 && dice.chance(60);
  if (is_long) {
    o.sequences = std::min(o.sequences, 3U);
    o.max_rows = std::max(o.max_rows, 100U);
    left = 5000;
  }
  for (uint32_t i = 0; i < o.sequences; ++i) {
    uint32_t rows = dice.of({1U, 2U, 15U, 16U, 17U, 31U, 32U, 33U, 47U, 48U, 63U, 64U, 65U, 128U});
    if (dice.chance(40)) rows = dice.between(1, o.positions);
    if (is_long) rows = dice.between(o.positions / 2, o.positions);
    if (dice.chance(80) && o.positions > 20) rows = std::min(rows, o.positions - 20);  // to decode
    rows = std::min({rows, o.positions, std::max(1U, left)});
    left -= std::min(left, rows);
    scene.prompts.push_back(rows);
  }
  return scene;
}

// How far logits may be apart; the reasons are Variant's.
double tolerance_of(const Backend& backend, kv::KvFormat format) {
  if (backend.chunk_tolerance > 0)
    return Variant{.name = {}, .backend = backend, .format = format}.chunk_tolerance();
  // Both in float32: now and then a value lies where the other engine rounds it to its neighbour.
  switch (format) {
    case kv::KvFormat::kF32:
      return 1e-4;
    case kv::KvFormat::kBf16:
    case kv::KvFormat::kInt8:
      return 1e-2;
    case kv::KvFormat::kFp8E4M3:
    case kv::KvFormat::kK8V4:
    case kv::KvFormat::kInt4:
      break;
  }
  return 5e-2;
}

// One row of one step.
struct RowDistance {
  uint32_t step = 0;
  uint32_t sequence = 0;
  uint32_t position = 0;
  StepOutput output = StepOutput::kNone;
  double logits = 0;   // relative L2 distance; of samples and scores unknown
  double element = 0;  // the largest of one logit, in units of the row's root mean square
  double noise = 0;    // what rounding activations to bf16 makes `logits`
};

// An engine and what it is held against, which take the same steps.
class Duel {
 public:
  struct Engines {
    EngineHarness& ours;
    EngineHarness& reference;
    EngineHarness* rounded = nullptr;  // null: ours rounds nothing
  };
  Duel(const Engines& engines, const Scene& scene, Dice& dice)
      : engines_(engines), scene_(scene), dice_(dice) {
    greedy_.temperature = 0;
    const model::ModelConfig& config = engines_.ours.engine().config();
    for (uint32_t i = 0; i < scene.options.sequences; ++i) {
      Sequence s;
      s.prompt = scene.prompts[i];
      s.blocks.assign(engines_.ours.blocks(i).begin(), engines_.ours.blocks(i).end());
      for (uint32_t t = 0; t < scene.options.positions; ++t)
        s.tokens.push_back(static_cast<TokenId>(dice.below(config.vocab)));
      sequences_.push_back(std::move(s));
    }
  }

  // Prompts in pieces, among others that decode already; then all decode together, and then some.
  void run() {
    const auto failed = [] { return ::testing::Test::HasFatalFailure(); };
    for (int step = 0; step < 60 && !failed(); ++step)
      if (!mixed_step()) break;
    for (int step = 0; step < 3 && !failed(); ++step) decode_step();
    for (int step = 0; step < 3 && !failed(); ++step) mixed_step();
  }

  [[nodiscard]] const std::vector<RowDistance>& rows() const { return rows_; }
  [[nodiscard]] uint32_t steps() const { return steps_; }

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
    uint32_t prompt = 0;
    uint32_t done = 0;     // with the step that is being put together
    uint32_t settled = 0;  // before it
  };

  // A prompt that begins with another's full pages reads them where they are.
  void reuse_prefix(Sequence& s) {
    for (const Sequence& other : sequences_) {
      const uint32_t shared =
          std::min(other.settled, s.prompt - 1) / kv::kBlockTokens * kv::kBlockTokens;
      if (&other == &s || shared == 0 || !dice_.chance(30)) continue;
      std::copy_n(other.tokens.begin(), shared, s.tokens.begin());
      std::copy_n(other.blocks.begin(), shared / kv::kBlockTokens, s.blocks.begin());
      s.done = shared;
      return;
    }
  }

  bool mixed_step() {  // false: there is no prompt left
    std::vector<uint32_t> order(sequences_.size());
    std::iota(order.begin(), order.end(), 0U);
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[dice_.below(static_cast<uint32_t>(i))]);
    const bool prompts =
        std::ranges::any_of(sequences_, [](const Sequence& s) { return s.done < s.prompt; });
    std::vector<SequenceInput> step;
    uint32_t room = scene_.options.max_rows;
    for (const uint32_t i : order) {
      Sequence& s = sequences_[i];
      if (room == 0 || dice_.chance(20)) continue;
      if (s.done == 0) reuse_prefix(s);
      uint32_t rows = 1;
      if (s.done < s.prompt) {
        rows = s.prompt - s.done;
        if (dice_.chance(40)) rows = std::min(rows, dice_.of({1U, 2U, 3U, 15U, 16U, 17U, 50U}));
      } else if (scene_.options.verify_rows > 1 && dice_.chance(50)) {
        rows = dice_.between(1, scene_.options.verify_rows);
      }
      rows = std::min({rows, room, scene_.options.positions - s.done});
      if (rows == 0) continue;
      room -= rows;
      step.push_back(input(i, rows, false));
    }
    if (!step.empty()) take(step);
    return prompts;
  }

  void decode_step() {
    std::vector<SequenceInput> step;
    for (uint32_t i = 0; i < sequences_.size(); ++i)
      if (sequences_[i].done < scene_.options.positions && step.size() < scene_.options.max_rows)
        step.push_back(input(i, 1, true));
    if (!step.empty()) take(step);
  }

  SequenceInput input(uint32_t index, uint32_t rows, bool recorded) {
    Sequence& s = sequences_[index];
    SequenceInput in;
    in.tokens = std::span(s.tokens).subspan(s.done, rows);
    in.start = s.done;
    in.blocks = s.blocks;
    in.tail = index;
    s.done += rows;
    in.sampling = &greedy_;
    in.history = {std::span(s.tokens).first(s.done), std::min(s.done, s.prompt)};
    const uint32_t choice = dice_.below(100);
    const uint64_t values = uint64_t{rows} * engines_.ours.engine().config().vocab;
    if (choice < 10) {
      in.output = StepOutput::kNone;
    } else if (choice < 30 || values > 2'000'000) {
      in.output = StepOutput::kSample;
    } else if (choice < 40 && !recorded) {
      in.output = StepOutput::kScoreRows;
      in.sampling = nullptr;
    } else if (choice < 50) {
      in.output = StepOutput::kSampleRows;
    } else {
      in.output = StepOutput::kLogits;
    }
    return in;
  }

  void take(const std::vector<SequenceInput>& step) {
    ++steps_;
    const auto got = engines_.ours.engine().step(step, engines_.ours.pages());
    ASSERT_TRUE(got) << "step " << steps_ << ": " << got.error().to_string();
    const auto want = logits_of(engines_.reference, step);
    ASSERT_EQ(want.size(), step.size());
    std::vector<std::vector<float>> noisy = want;
    if (engines_.rounded != nullptr) noisy = logits_of(*engines_.rounded, step);
    ASSERT_EQ(noisy.size(), step.size());
    for (size_t i = 0; i < step.size(); ++i) compare(step[i], (*got)[i], want[i], noisy[i]);
    for (Sequence& s : sequences_) s.settled = s.done;
  }

  // Of all rows that something is wanted of.
  static std::vector<std::vector<float>> logits_of(EngineHarness& harness,
                                                   std::vector<SequenceInput> step) {
    const auto run = [&](std::span<const SequenceInput> inputs) {
      auto out = harness.engine().step(inputs, harness.pages());
      EXPECT_TRUE(out) << out.error().to_string();
      return out ? std::move(*out) : std::vector<engine::SequenceOutput>();
    };
    for (SequenceInput& s : step) {
      if (s.output == StepOutput::kSample && s.tokens.size() > 1) {
        SequenceInput before = s;
        before.tokens = before.tokens.first(before.tokens.size() - 1);
        before.output = StepOutput::kNone;
        if (run({&before, 1}).empty()) return {};
        s.start += static_cast<uint32_t>(before.tokens.size());
        s.tokens = s.tokens.last(1);
      }
      if (s.output != StepOutput::kNone) s.output = StepOutput::kLogits;
    }
    std::vector<std::vector<float>> result;
    for (engine::SequenceOutput& out : run(step)) result.push_back(std::move(out.logits));
    return result;
  }

  void compare(const SequenceInput& in, const engine::SequenceOutput& got,
               const std::vector<float>& want, const std::vector<float>& noisy) {
    const size_t vocab = engines_.ours.engine().config().vocab;
    const size_t first = in.output == StepOutput::kSample ? in.tokens.size() - 1 : 0;
    for (size_t r = 0; r < want.size() / vocab; ++r) {
      const auto row = std::span(want).subspan(r * vocab, vocab);
      RowDistance d;
      d.step = steps_;
      d.sequence = in.tail;
      d.position = in.start + static_cast<uint32_t>(first + r);
      d.output = in.output;
      d.noise = distance_of(std::span(noisy).subspan(r * vocab, vocab), row);
      switch (in.output) {
        case StepOutput::kNone:
          return;
        case StepOutput::kLogits:
          ASSERT_EQ(got.logits.size(), want.size());
          compare_logits(std::span(got.logits).subspan(r * vocab, vocab), row, d);
          break;
        case StepOutput::kSample:
          ASSERT_TRUE(got.token);
          compare_token(got.token->id, row, d);
          break;
        case StepOutput::kSampleRows:
          ASSERT_EQ(got.tokens.size(), in.tokens.size());
          compare_token(got.tokens[r].id, row, d);
          break;
        case StepOutput::kScoreRows:
          ASSERT_EQ(got.scores.size(), in.tokens.size() - 1);
          if (r == got.scores.size()) return;
          compare_score(in.tokens[r + 1], got.scores[r].logprob, row, d);
          break;
      }
      rows_.push_back(d);
    }
  }

  static double size_of(std::span<const float> row) {
    double sum = 0;
    for (const float x : row) sum += double{x} * double{x};
    return std::sqrt(sum / static_cast<double>(row.size())) + 1e-6;
  }
  static double distance_of(std::span<const float> got, std::span<const float> want) {
    double error = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double d = double{got[i]} - double{want[i]};
      error += d * d;
    }
    return std::sqrt(error / static_cast<double>(want.size())) / size_of(want);
  }

  static void compare_logits(std::span<const float> got, std::span<const float> want,
                             RowDistance& d) {
    d.logits = distance_of(got, want);
    for (size_t i = 0; i < want.size(); ++i)
      d.element = std::max(d.element, std::abs(double{got[i]} - double{want[i]}));
    d.element /= size_of(want);
    ASSERT_TRUE(std::isfinite(d.logits)) << "step " << d.step << ", position " << d.position;
  }

  // Both may be off: the token's logit and that of the best.
  static void compare_token(TokenId id, std::span<const float> want, RowDistance& d) {
    ASSERT_GE(id, 0);
    ASSERT_LT(static_cast<size_t>(id), want.size());
    const double missing =
        double{*std::ranges::max_element(want)} - double{want[static_cast<size_t>(id)]};
    d.element = missing / 2 / size_of(want);
  }

  static void compare_score(TokenId id, float logprob, std::span<const float> want,
                            RowDistance& d) {
    const double best = *std::ranges::max_element(want);
    double sum = 0;
    for (const float x : want) sum += std::exp(double{x} - best);
    const double expected = double{want[static_cast<size_t>(id)]} - best - std::log(sum);
    d.element = std::abs(double{logprob} - expected) / 2 / size_of(want);
  }

  Engines engines_;
  const Scene& scene_;
  Dice& dice_;
  engine::SamplingParams greedy_;
  std::vector<Sequence> sequences_;
  std::vector<RowDistance> rows_;
  uint32_t steps_ = 0;
};

struct Case {
  Backend backend;
  uint64_t seed = 0;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.backend.name << ", seed " << c.seed; }

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Backend& b : backends()) {
    // On the CPU the plain loops, so that each of the two vouches for the other.
    if (b.name != "reference" && b.name != "cuda") continue;
    const uint64_t first = number_from("TANDEM_SHAPES_FIRST", 1);
    const uint64_t count = number_from("TANDEM_SHAPES", b.slow ? 12 : 60);
    for (uint64_t seed = first; seed < first + count; ++seed) out.push_back({b, seed});
  }
  return out;
}

std::string describe(const Scene& scene, const model::ModelConfig& config) {
  const EngineHarness::Options& o = scene.options;
  return config.describe() + "; " + std::string(to_string(o.format)) + ", rows " +
         std::to_string(o.max_rows) + ", sequences " + std::to_string(o.sequences) + ", verify " +
         std::to_string(o.verify_rows) + (o.fp8_weights ? ", fp8" : "");
}

// Root mean square of what `pick` takes of the rows.
template <typename Pick>
double average(std::span<const RowDistance> rows, Pick&& pick) {
  double sum = 0;
  for (const RowDistance& r : rows) sum += pick(r) * pick(r);
  return rows.empty() ? 0 : std::sqrt(sum / static_cast<double>(rows.size()));
}

// Rows that are not as near to the reference as they must be. That is the tolerance of the
// backend's numbers, or, in models that make more of roundings, a small multiple of what these do.
class Verdict {
 public:
  Verdict(const Duel& duel, double tolerance) : rows_(duel.rows()), tolerance_(tolerance) {
    noise_ = average(rows_, [](const RowDistance& r) { return r.noise; });
    std::ranges::sort(rows_, std::greater{}, [&](const RowDistance& r) { return excess(r); });
  }

  // A mixture's choice of experts may turn on the last bits of what it sees. Few rows do that where
  // a router is sure of itself, and the others must agree as those of any model do.
  void judge(bool mixture) const {
    const size_t spared = mixture ? (rows_.size() * 15 + 99) / 100 : 0;
    const auto rest = std::span(rows_).subspan(spared);
    const double all = average(rest, [](const RowDistance& r) { return r.logits; });
    // Of a model that makes more of roundings nothing can be told: its seed is none for this suite.
    EXPECT_LE(average(rest, [](const RowDistance& r) { return r.noise; }), 0.25);
    EXPECT_LE(all, std::max(tolerance_, 2 * noise_));
    for (const RowDistance& r : rest.first(std::min<size_t>(rest.size(), 5)))
      EXPECT_LE(excess(r), 1) << "step " << r.step << ", sequence " << r.sequence << ", position "
                              << r.position << ", output " << static_cast<int>(r.output)
                              << ": logits " << r.logits << ", element " << r.element << ", noise "
                              << r.noise;
  }

  [[nodiscard]] std::string describe() const {
    const auto logits = [](const RowDistance& r) { return r.logits; };
    char text[160];
    std::snprintf(text, sizeof text, "distance %.4f, noise %.4f, worst row %.2f of its tolerance",
                  average(rows_, logits), noise_, rows_.empty() ? 0 : excess(rows_.front()));
    return std::to_string(rows_.size()) + " rows, " + text;
  }

 private:
  // Of a million values of a normal distribution none lies eight deviations out.
  [[nodiscard]] double excess(const RowDistance& r) const {
    const double allowed = std::max({2 * tolerance_, 4 * noise_, 4 * r.noise});
    return std::max(r.logits / allowed, r.element / (4 * allowed));
  }

  std::vector<RowDistance> rows_;
  double tolerance_;
  double noise_ = 0;
};

// A lost device fails every later step, whatever it asks for.
bool is_lost(EngineHarness& harness) {
  const TokenId zero[] = {0};
  SequenceInput one;
  one.tokens = zero;
  one.blocks = harness.blocks(0);
  one.output = StepOutput::kNone;
  const auto out = harness.engine().step({&one, 1}, harness.pages());
  return !out && out.error().code == ErrorCode::kDeviceLost;
}

class RandomShape : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    static const TimePoint begin = SteadyClock().now();
    const uint64_t seconds = number_from("TANDEM_SHAPES_SECONDS", 0);
    if (seconds > 0 && to_seconds(SteadyClock().now() - begin) > static_cast<double>(seconds))
      GTEST_SKIP() << "no time left";
    if (lost_) GTEST_FAIL() << "the device was lost to an earlier seed";
    started_ = SteadyClock().now();
  }
  void report(const Verdict& verdict, const std::string& what) const {
    if (!HasFailure() && number_from("TANDEM_SHAPES_LOG", 0) == 0) return;
    std::printf("%s seed %llu: %s: %s; %.0f ms\n", HasFailure() ? "BAD" : "ok",
                static_cast<unsigned long long>(GetParam().seed), what.c_str(),
                verdict.describe().c_str(), to_seconds(SteadyClock().now() - started_) * 1e3);
  }

  inline static bool lost_ = false;
  TimePoint started_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RandomShape);
INSTANTIATE_TEST_SUITE_P(Seeds, RandomShape, ::testing::ValuesIn(cases()), [](const auto& c) {
  return c.param.backend.name + "_" + std::to_string(c.param.seed);
});

TEST_P(RandomShape, AgreesWithTheCpuEngineInFloat32) {
  const auto& [backend, seed] = GetParam();
  Dice dice(seed);
  const RandomModel model = random_model(dice);
  const TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(write_random_model(folder, model, seed));
  const auto checkpoint = model::Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << model.config << checkpoint.error().to_string();
  const model::ModelConfig& config = (*checkpoint)->config();
  const Scene scene = random_scene(dice, config, backend, model.suits_fp8);
  const std::string what = describe(scene, config);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + model.config + "\n" + what);

  auto ops = backend.create(backend.types.front(), config, limits_of(scene.options));
  ASSERT_NE(ops, nullptr);
  auto ours = EngineHarness::create(**checkpoint, std::move(ops), scene.options);
  lost_ = !ours && ours.error().code == ErrorCode::kDeviceLost;
  ASSERT_TRUE(ours) << ours.error().to_string();
  auto reference = EngineHarness::create(**checkpoint, create_float_ops(), scene.options);
  ASSERT_TRUE(reference) << reference.error().to_string();
  std::unique_ptr<EngineHarness> rounded;
  if (backend.chunk_tolerance > 0) {
    const uint32_t fp8_above = scene.options.fp8_weights ? 48 : UINT32_MAX;
    auto made = EngineHarness::create(**checkpoint, create_rounded_ops(fp8_above), scene.options);
    ASSERT_TRUE(made) << made.error().to_string();
    rounded = std::move(*made);
  }
  Duel duel({**ours, **reference, rounded.get()}, scene, dice);
  duel.run();
  const Verdict verdict(duel, tolerance_of(backend, scene.options.format));
  if (!HasFatalFailure()) verdict.judge(config.moe.experts > 0);
  report(verdict, what + ", " + std::to_string(duel.steps()) + " steps");
  if (HasFailure()) lost_ = is_lost(**ours);
}

}  // namespace
}  // namespace tandem::testing
