// Whole models against the reference implementation, on every Ops there is. A backend joins by one
// entry in backends() (tests/support/backends.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <ostream>

#include "tests/support/backends.h"
#include "tests/support/engine_harness.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

struct Case {
  Backend backend;
  std::string model;
  DType dtype;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.backend.name << ' ' << c.model << ' ' << to_string(c.dtype);
}

std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test_data("golden")))
    if (std::filesystem::exists(entry.path() / "golden.json") &&
        entry.path().filename() != "smollm2")  // its weights are not in the repository
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Case> all_cases(std::vector<DType> types) {
  std::vector<Case> out;
  for (const Backend& b : backends())
    for (const std::string& m : golden_models())
      for (const DType t : types)
        if (std::ranges::count(b.types, t) > 0) out.push_back({b, m, t});
  return out;
}

std::unique_ptr<EngineHarness> open(const std::filesystem::path& path, const Backend& backend,
                                    DType dtype, uint32_t max_rows) {
  const auto checkpoint = model::Checkpoint::open(path);
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  if (!checkpoint) return nullptr;
  EngineHarness::Options options;
  options.format = dtype == DType::kF32 ? kv::KvFormat::kF32 : kv::KvFormat::kBf16;
  options.max_rows = max_rows;
  auto harness = EngineHarness::create(
      **checkpoint, backend.create(dtype, (*checkpoint)->config(), limits_of(options)), options);
  EXPECT_TRUE(harness) << harness.error().to_string();
  return harness ? std::move(*harness) : nullptr;
}

double tolerance(DType t) { return t == DType::kF32 ? 2e-4 : 2e-2; }

// Whether errors of `limit` (relative L2 of the row) leave no doubt which logit is the largest: the
// gap of the two best is six times what such an error makes of one logit (root mean square).
bool is_clear(const float* row, size_t vocab, double limit) {
  double squares = 0;
  float best = -std::numeric_limits<float>::infinity();
  float second = best;
  for (size_t i = 0; i < vocab; ++i) {
    squares += double{row[i]} * row[i];
    second = std::max(second, std::min(best, row[i]));
    best = std::max(best, row[i]);
  }
  return best - second > 6 * limit * std::sqrt(squares / static_cast<double>(vocab));
}

class GoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder =
        std::filesystem::path(test_data("golden")) / GetParam().model;
    harness_ = open(folder, GetParam().backend, GetParam().dtype, 96);
    ASSERT_NE(harness_, nullptr);
    auto golden = load_golden(folder);
    ASSERT_TRUE(golden) << golden.error().to_string();
    golden_ = std::move(*golden);
    ASSERT_FALSE(golden_.empty());
  }
  // In a mixture, rounding may send a token to another expert when two score nearly alike; the
  // reference implementation in bf16 itself is 0.04 to 0.08 off on these prompts. A few rows in a
  // hundred may differ, the rest may not.
  [[nodiscard]] bool rounding_reroutes() const {
    return GetParam().dtype != DType::kF32 && harness_->engine().config().moe.experts > 0;
  }
  // Whether `row` is off row r of the reference's.
  static bool is_over(double limit, const float* row, const std::vector<float>& all, size_t r,
                      size_t vocab) {
    const auto wanted = all.begin() + static_cast<std::ptrdiff_t>(r * vocab);
    return relative_l2(row, {wanted, wanted + static_cast<std::ptrdiff_t>(vocab)}) > limit;
  }
  static size_t rows_over(double limit, const float* a, const std::vector<float>& b, size_t vocab) {
    size_t over = 0;
    for (size_t r = 0; r * vocab < b.size(); ++r)
      over += is_over(limit, a + r * vocab, b, r, vocab);
    return over;
  }

  std::unique_ptr<EngineHarness> harness_;
  std::vector<GoldenCase> golden_;
};

TEST_P(GoldenTest, LogitsMatchTheReference) {
  const double limit = tolerance(GetParam().dtype) * GetParam().backend.single_prompt_slack;
  std::vector<float> computed;
  std::vector<float> wanted;
  size_t compared = 0;  // rows whose best token is
  size_t rerouted = 0;  // last rows of a prompt that went to another expert
  const size_t vocab = harness_->engine().config().vocab;
  for (size_t j = 0; j < golden_.size(); ++j) {
    const GoldenCase& g = golden_[j];
    const auto logits = harness_->logits(g.prompt);
    ASSERT_TRUE(logits) << logits.error().to_string();
    ASSERT_EQ(g.last_logits.size(), vocab);
    const double last = relative_l2(logits->data() + (g.prompt.size() - 1) * vocab, g.last_logits);
    if (rounding_reroutes()) {
      rerouted += last >= limit;
      EXPECT_LE(rows_over(limit, logits->data(), g.all_logits, vocab),
                1 + g.all_logits.size() / vocab / 10)
          << "case " << j;
    } else {
      EXPECT_LT(last, limit) << "case " << j;
      EXPECT_LT(relative_l2(logits->data(), g.all_logits), limit) << "case " << j;
    }
    computed.insert(computed.end(), logits->begin(),
                    logits->begin() + static_cast<std::ptrdiff_t>(g.all_logits.size()));
    wanted.insert(wanted.end(), g.all_logits.begin(), g.all_logits.end());
    for (size_t r = 0; r < g.top1.size(); ++r) {
      if (GetParam().dtype != DType::kF32 &&
          ((r + 1) * vocab > g.all_logits.size() ||
           !is_clear(g.all_logits.data() + r * vocab, vocab, limit)))
        continue;
      const float* row = logits->data() + r * vocab;
      if (rounding_reroutes() && is_over(limit, row, g.all_logits, r, vocab))
        continue;  // counted above
      EXPECT_EQ(std::max_element(row, row + vocab) - row, g.top1[r])
          << "case " << j << " row " << r;
      ++compared;
    }
  }
  EXPECT_LE(rerouted, 1U) << "of " << golden_.size();
  RecordProperty("compared", static_cast<int>(compared));
  EXPECT_GT(compared, 0U) << "no row whose best token is beyond doubt";
  if (!rounding_reroutes()) {
    EXPECT_LT(relative_l2(computed.data(), wanted), tolerance(GetParam().dtype)) << "all cases";
  }
}

// In float32 only: rounded weights may choose otherwise where two logits nearly tie.
class GoldenGreedyTest : public GoldenTest {};

TEST_P(GoldenGreedyTest, TokensMatchTheReference) {
  for (size_t j = 0; j < golden_.size(); ++j) {
    engine::SamplingParams greedy;
    greedy.temperature = 0;
    const auto tokens = harness_->generate(golden_[j].prompt, golden_[j].greedy.size(), greedy);
    ASSERT_TRUE(tokens) << tokens.error().to_string();
    EXPECT_EQ(*tokens, golden_[j].greedy) << "case " << j;
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& instance) {
  return instance.param.backend.name + "_" + instance.param.model + "_" +
         std::string(to_string(instance.param.dtype));
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenTest,
                         ::testing::ValuesIn(all_cases({DType::kF32, DType::kBf16})), case_name);
INSTANTIATE_TEST_SUITE_P(Backends, GoldenGreedyTest, ::testing::ValuesIn(all_cases({DType::kF32})),
                         case_name);

// The real model: SmolLM2-135M-Instruct from its GGUF file, which the repository does not carry.
class RealModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(RealModelTest, LogitsAndGreedyTextMatchTheReference) {
  const char* path = std::getenv("TANDEM_SMOLLM2");
  if (path == nullptr) GTEST_SKIP() << "TANDEM_SMOLLM2 names no file";
  const auto golden = load_golden(test_data("golden/smollm2"));
  ASSERT_TRUE(golden) << golden.error().to_string();
  const auto harness = open(path, GetParam().backend, GetParam().dtype, 128);
  ASSERT_NE(harness, nullptr);
  const size_t vocab = harness->engine().config().vocab;
  const size_t cases = GetParam().backend.fast ? golden->size() : 1;
  for (size_t j = 0; j < cases; ++j) {
    const GoldenCase& g = (*golden)[j];
    const auto logits = harness->logits(g.prompt);
    ASSERT_TRUE(logits) << logits.error().to_string();
    EXPECT_LT(relative_l2(logits->data() + (g.prompt.size() - 1) * vocab, g.last_logits),
              tolerance(GetParam().dtype))
        << "case " << j;
    const size_t count = GetParam().backend.fast ? g.greedy.size() : 4;
    engine::SamplingParams greedy;
    greedy.temperature = 0;
    const auto tokens = harness->generate(g.prompt, count, greedy);
    ASSERT_TRUE(tokens) << tokens.error().to_string();
    for (size_t i = 0; i < count; ++i) {
      if ((*tokens)[i] == g.greedy[i]) continue;
      // bf16 may choose otherwise where the two best logits lie closer than its error.
      EXPECT_TRUE(GetParam().dtype == DType::kBf16 && g.margins[i] < 0.5F)
          << "case " << j << " token " << i << " with margin " << g.margins[i];
      break;
    }
  }
}

// Plain loops take minutes for it; the small models have shown that they are right.
std::vector<Case> real_cases() {
  std::vector<Case> out;
  for (const Backend& b : backends())
    for (const DType t : b.types)
      if (!b.slow) out.push_back({b, "smollm2", t});
  return out;
}

// A machine without AVX2, or without a card.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenGreedyTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RealModelTest);
INSTANTIATE_TEST_SUITE_P(Backends, RealModelTest, ::testing::ValuesIn(real_cases()), case_name);

}  // namespace
}  // namespace tandem::testing
