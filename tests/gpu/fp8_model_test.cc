// Whole models with FP8 projections: how far their logits are from the reference's, and from those
// of the same engine in bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "common/cuda/device_info.h"
#include "common/engine/cuda/cuda_ops.h"
#include "tests/support/engine_harness.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

std::unique_ptr<EngineHarness> open(const std::filesystem::path& path,
                                    engine::Quantization quantization) {
  const auto checkpoint = model::Checkpoint::open(path);
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  if (!checkpoint) return nullptr;
  EngineHarness::Options options;
  options.format = kv::KvFormat::kBf16;
  options.max_rows = 96;
  engine::CudaOptions cuda;
  cuda.max_rows = options.max_rows;
  cuda.max_context = options.positions;
  cuda.max_sequences = options.sequences;
  cuda.quantization = quantization;
  const model::ModelConfig& config = (*checkpoint)->config();
  cuda.kv_layout = kv::KvLayout{config.layers, config.kv_heads, config.head_dim, options.format};
  auto ops = engine::create_cuda_ops(cuda, config);
  if (!ops && ops.error().code == ErrorCode::kUnsupported) {
    std::printf("[ FIGURE   ] %-12s %s\n", path.filename().c_str(), ops.error().detail.c_str());
    return nullptr;
  }
  EXPECT_TRUE(ops) << ops.error().to_string();
  if (!ops) return nullptr;
  auto harness = EngineHarness::create(**checkpoint, std::move(*ops), options);
  EXPECT_TRUE(harness) << harness.error().to_string();
  return harness ? std::move(*harness) : nullptr;
}

// exp of the mean negative log-likelihood of the prompt's own tokens.
double perplexity(const std::vector<float>& logits, const std::vector<TokenId>& tokens) {
  const size_t vocab = logits.size() / tokens.size();
  double nll = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const float* row = logits.data() + i * vocab;
    double most = -1e30, sum = 0;
    for (size_t v = 0; v < vocab; ++v) most = std::max(most, static_cast<double>(row[v]));
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]) - most);
    nll += most + std::log(sum) - static_cast<double>(row[static_cast<size_t>(tokens[i + 1])]);
  }
  return std::exp(nll / static_cast<double>(tokens.size() - 1));
}

struct Comparison {
  double off = 0;   // relative L2 of all logits
  double bf16 = 0;  // perplexities, the geometric mean over prompts
  double fp8 = 0;
};

// Nothing where the model cannot be kept in FP8.
std::optional<Comparison> compare(const std::filesystem::path& model,
                                  const std::vector<std::vector<TokenId>>& prompts) {
  std::vector<std::vector<float>> bf16;
  {
    const auto harness = open(model, engine::Quantization::kNone);
    if (harness == nullptr) return std::nullopt;
    for (const auto& prompt : prompts) bf16.push_back(harness->logits(prompt).value());
  }
  const auto harness = open(model, engine::Quantization::kFp8);
  if (harness == nullptr) return std::nullopt;
  double difference = 0, norm = 0;
  size_t same = 0, rows = 0;
  Comparison c;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<TokenId>& prompt = prompts[i];
    const std::vector<float> got = harness->logits(prompt).value();
    const size_t vocab = got.size() / prompt.size();
    for (size_t j = 0; j < got.size(); ++j) {
      const double d = static_cast<double>(got[j]) - static_cast<double>(bf16[i][j]);
      difference += d * d;
      norm += static_cast<double>(bf16[i][j]) * static_cast<double>(bf16[i][j]);
    }
    for (size_t r = 0; r < prompt.size(); ++r) {
      const auto best = [&](const std::vector<float>& v) {
        const auto begin = v.begin() + static_cast<std::ptrdiff_t>(r * vocab);
        return std::max_element(begin, begin + static_cast<std::ptrdiff_t>(vocab)) - begin;
      };
      same += best(got) == best(bf16[i]) ? 1 : 0;
      ++rows;
    }
    if (prompt.size() < 2) continue;
    c.bf16 += std::log(perplexity(bf16[i], prompt));
    c.fp8 += std::log(perplexity(got, prompt));
  }
  const double cases = static_cast<double>(prompts.size());
  c.off = std::sqrt(difference / norm);
  c.bf16 = std::exp(c.bf16 / cases);
  c.fp8 = std::exp(c.fp8 / cases);
  std::printf(
      "[ FIGURE   ] %-12s logits %.4f off bf16, same best token %zu of %zu, perplexity %.3f "
      "(bf16 %.3f)\n",
      model.filename().c_str(), c.off, same, rows, c.fp8, c.bf16);
  return c;
}

std::vector<std::vector<TokenId>> prompts_of(const std::filesystem::path& golden) {
  std::vector<std::vector<TokenId>> prompts;
  const auto cases = load_golden(golden);
  EXPECT_TRUE(cases) << cases.error().to_string();
  if (!cases) return prompts;
  for (const GoldenCase& c : *cases) prompts.push_back(c.prompt);
  return prompts;
}

TEST(Fp8Model, LogitsStayNearThoseOfBf16) {
  const auto devices = cuda::list_devices();
  if (!devices || devices->empty()) GTEST_SKIP() << "no CUDA device here";
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_data("golden"))) {
    const auto checkpoint = model::Checkpoint::open(entry.path());
    if (!checkpoint || (*checkpoint)->config().moe.experts > 0) continue;
    if (!std::filesystem::exists(entry.path() / "golden.json")) continue;
    // Random weights amplify: a bound that only something broken exceeds.
    const auto c = compare(entry.path(), prompts_of(entry.path()));
    if (!c) continue;
    ++compared;
    EXPECT_LT(c->off, 0.5) << entry.path();
  }
  EXPECT_GE(compared, 3);  // llama3, qwen2 and qwen3 have sizes that fit
  const char* path = std::getenv("TANDEM_SMOLLM2");
  if (path == nullptr) return;
  const auto c = compare(path, prompts_of(test_data("golden/smollm2")));
  ASSERT_TRUE(c);
  EXPECT_LT(c->off, 0.15);
}

// Conversations like those it was trained on (make_dialogs.py beside them).
TEST(Fp8Model, ATrainedModelKeepsItsPerplexity) {
  const auto devices = cuda::list_devices();
  if (!devices || devices->empty()) GTEST_SKIP() << "no CUDA device here";
  std::ifstream file(test_data("fp8/dialogs.json"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::vector<TokenId>> prompts;
  const boost::json::value document = boost::json::parse(text);
  for (const auto& prompt : document.at("prompts").as_array()) {
    prompts.emplace_back();
    for (const auto& id : prompt.as_array()) prompts.back().push_back(id.to_number<TokenId>());
  }
  ASSERT_EQ(prompts.size(), 24U);
  const auto c = compare(test_data("../../models/chat-6m"), prompts);
  ASSERT_TRUE(c);
  // The same quantization simulated in PyTorch: 1.008 and 0.065.
  EXPECT_LT(c->fp8 / c->bf16, 1.02);
  EXPECT_LT(c->off, 0.1);
}

TEST(Fp8Model, AMixtureOfExpertsIsRefused) {
  const auto devices = cuda::list_devices();
  if (!devices || devices->empty()) GTEST_SKIP() << "no CUDA device here";
  const auto checkpoint = model::Checkpoint::open(test_data("golden/qwen3_moe"));
  if (!checkpoint) GTEST_SKIP() << "no such model among the golden ones";
  engine::CudaOptions options;
  options.quantization = engine::Quantization::kFp8;
  auto ops = engine::create_cuda_ops(options, (*checkpoint)->config());
  ASSERT_FALSE(ops);
  EXPECT_EQ(ops.error().param, "quantization");
}

}  // namespace
}  // namespace tandem::testing
