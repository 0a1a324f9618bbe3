#include "kernels/cuda/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cuda/sampling/history_slots.h"
#include "common/engine/cuda/sampling/sample_batch.h"
#include "common/engine/sampling.h"
#include "tests/gpu/card.h"

// The device sampler against the CPU sampler on identical logits.
namespace tandem::cuda {
namespace {

using engine::SampledToken;
using engine::SamplingParams;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kTop = 64;
constexpr uint32_t kStride = 4096;  // history tokens

// One row's input.
struct Ask {
  const std::vector<float>* logits = nullptr;
  SamplingParams params;
  std::vector<TokenId> history;
  size_t prompt = 0;
};

class SamplingTest : public CardTest {
 protected:
  void TearDown() override {
    for (void* p : owned_) (void)cudaFree(p);
  }

  template <class T>
  T* make(size_t n) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, std::max<size_t>(n, 1) * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(p, 0xee, std::max<size_t>(n, 1) * sizeof(T)), cudaSuccess);
    owned_.push_back(p);
    return static_cast<T*>(p);
  }
  template <class T>
  void upload(T* to, const std::vector<T>& from) {
    ASSERT_CUDA(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <class T>
  std::vector<T> download(const T* from, size_t n) {
    std::vector<T> out(n);
    EXPECT_EQ(cudaMemcpy(out.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

  void put(uint32_t row, const std::vector<float>& logits) {
    ASSERT_CUDA(cudaMemcpy(logits_ + size_t{row} * stride_, logits.data(),
                           logits.size() * sizeof(float), cudaMemcpyHostToDevice));
  }

  void open(uint32_t vocab, uint32_t max_rows) {
    max_rows_ = max_rows;
    plan_ = plan_sampling(vocab);
    ASSERT_GT(plan_.cluster, 0u);
    ASSERT_CUDA(prepare_sampling(plan_));
    stride_ = vocab;  // odd ones take the unaligned path
    logits_ = make<float>(size_t{max_rows} * stride_);
    rows_ = make<SampleRow>(max_rows);
    biases_ = make<SampleBias>(size_t{max_rows} * 300);
    io_.rows = rows_;
    io_.biases = biases_;
    io_.history = make<int32_t>(size_t{max_rows} * kStride);
    io_.history_stride = kStride;
    io_.tokens = make<int32_t>(max_rows);
    io_.logprobs = make<float>(max_rows);
    io_.top = make<SampleTop>(size_t{max_rows} * kTop);
    io_.top_capacity = kTop;
    host_rows_.resize(max_rows);
    host_biases_.resize(size_t{max_rows} * 300);
  }

  // Row i of the logits is asks[i]'s.
  std::vector<SampledToken> run(const std::vector<Ask>& asks, bool upload_logits = true) {
    engine::SampleBatch batch(plan_.vocab, kTop, host_rows_, host_biases_);
    engine::HistorySlots slots(max_rows_, kStride);
    slots.begin_step();
    for (uint32_t i = 0; i < asks.size(); ++i) {
      const Ask& a = asks[i];
      uint32_t slot = kNoHistory;
      const engine::TokenHistory history{a.history, a.prompt, i + 1};
      if (engine::needs_history(a.params)) {
        const auto got = slots.acquire(history);
        EXPECT_TRUE(got.has_value());
        slot = got->slot;
        EXPECT_EQ(cudaMemcpy(io_.history + size_t{slot} * kStride + got->from, got->tokens.data(),
                             got->tokens.size_bytes(), cudaMemcpyHostToDevice),
                  cudaSuccess);
      }
      EXPECT_TRUE(batch.add(i, a.params, history, slot).has_value());
      if (upload_logits) put(i, *a.logits);
    }
    launch(batch);
    const auto tokens = download(io_.tokens, asks.size());
    const auto logprobs = download(io_.logprobs, asks.size());
    const auto top = download(io_.top, asks.size() * kTop);
    std::vector<SampledToken> out(asks.size());
    for (size_t i = 0; i < asks.size(); ++i) {
      out[i].id = tokens[i];
      if (asks[i].params.logprobs < 0) continue;
      out[i].logprob = logprobs[i];
      for (uint32_t k = 0; k < batch.top_count(asks[i].params.logprobs); ++k)
        out[i].top.push_back({top[i * kTop + k].id, top[i * kTop + k].logprob});
    }
    return out;
  }

  void launch(const engine::SampleBatch& batch) {
    ASSERT_CUDA(
        cudaMemcpy(rows_, batch.rows().data(), batch.rows().size_bytes(), cudaMemcpyHostToDevice));
    ASSERT_CUDA(cudaMemcpy(biases_, batch.biases().data(), batch.biases().size_bytes(),
                           cudaMemcpyHostToDevice));
    ASSERT_CUDA(launch_sampling(plan_, logits_, stride_, static_cast<uint32_t>(batch.rows().size()),
                                io_, false, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
  }

  static SampledToken on_cpu(const Ask& a) {
    std::vector<float> scratch = *a.logits;
    return engine::sample(scratch, a.params, {a.history, a.prompt});
  }

  void expect_same(const std::vector<Ask>& asks, const char* what) {
    const auto got = run(asks);
    for (size_t i = 0; i < asks.size(); ++i) {
      const SampledToken want = on_cpu(asks[i]);
      const SamplingParams& p = asks[i].params;
      EXPECT_EQ(got[i].id, want.id)
          << what << " row " << i << " t " << p.temperature << " k " << p.top_k << " p " << p.top_p
          << " min " << p.min_p << " seed " << p.seed;
      if (p.logprobs < 0) continue;
      EXPECT_NEAR(got[i].logprob, want.logprob, 2e-5F) << what << " row " << i;
      ASSERT_EQ(got[i].top.size(), want.top.size());
      for (size_t k = 0; k < want.top.size(); ++k) {
        EXPECT_EQ(got[i].top[k].id, want.top[k].id) << what << " row " << i << " best " << k;
        EXPECT_NEAR(got[i].top[k].logprob, want.top[k].logprob, 2e-5F);
      }
    }
  }

  SamplingPlan plan_;
  uint32_t max_rows_ = 0;
  size_t stride_ = 0;
  float* logits_ = nullptr;
  SampleRow* rows_ = nullptr;
  SampleBias* biases_ = nullptr;
  DeviceSampling io_;
  std::vector<SampleRow> host_rows_;
  std::vector<SampleBias> host_biases_;
  std::vector<void*> owned_;
};

std::vector<float> normal_logits(size_t n, uint64_t seed, float spread) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

class Picker {
 public:
  explicit Picker(uint64_t seed) : rng_(seed) {}
  float of(std::initializer_list<float> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(rng_() % values.size()));
  }
  uint64_t next() { return rng_(); }

 private:
  std::mt19937_64 rng_;
};

TEST_F(SamplingTest, GreedyIsTheCpuSamplersOnEveryVocabulary) {
  for (const uint32_t vocab :
       problems({1u, 7u, 100u, 4096u, 4097u, 9001u, 49152u, 152064u, 262144u},
                {1u, 7u, 100u, 4097u, 9001u, 17000u})) {
    open(vocab, 8);
    std::vector<std::vector<float>> rows;
    for (uint64_t s = 0; s < 8; ++s) rows.push_back(normal_logits(vocab, s + vocab, 3));
    for (size_t i = 0; i < vocab; i += 3) rows[1][i] = 20;  // ties: the lowest id
    std::fill(rows[2].begin(), rows[2].end(), kNan);        // nothing possible
    std::fill(rows[3].begin(), rows[3].end(), -kInf);
    rows[4][vocab / 2] = kInf;
    rows[4][vocab - 1] = kInf;
    rows[5][vocab - 1] = 100;
    for (float& x : rows[6]) x = x > 0 ? 0.0F : -0.0F;  // zeros tie whatever their sign
    for (size_t i = 0; i < vocab; i += 5) rows[7][i] = kNan;
    if (vocab > 100) rows[4][vocab / 3] = std::numeric_limits<float>::max();  // ties with infinity
    for (const int logprobs : {-1, 5}) {  // with none the row is read for its best logit only
      std::vector<Ask> asks;
      for (const auto& r : rows) {
        Ask a{&r, {}, {}, 0};
        a.params.temperature = 0;
        a.params.logprobs = logprobs;
        asks.push_back(a);
      }
      expect_same(asks, ("vocab " + std::to_string(vocab)).c_str());
    }
  }
}

TEST_F(SamplingTest, DrawsTheCpuSamplersTokens) {
  constexpr uint32_t kVocab = 32003;
  const size_t rows = problems({64u}, {20u}).front();
  open(kVocab, static_cast<uint32_t>(rows));
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < rows; ++i)
    logits.push_back(normal_logits(kVocab, i, std::array{0.1F, 1.0F, 2.5F, 8.0F}[i % 4]));
  Picker pick(5);
  size_t draws = 0;
  size_t different = 0;
  const int rounds = problems({160}, {1}).front();
  for (int round = 0; round < rounds; ++round) {
    std::vector<Ask> asks;
    for (size_t i = 0; i < rows; ++i) {
      Ask a{&logits[i], {}, std::vector<TokenId>(pick.next() % 40, 3), 0};
      SamplingParams& p = a.params;
      p.temperature = pick.of({0.1F, 0.7F, 1, 2});
      p.top_k = static_cast<int32_t>(pick.of({0, 0, 1, 2, 50, 50, 700, 1500, 20000, 1000000}));
      p.top_p = pick.of({1, 1, 0, 0.1F, 0.5F, 0.9F, 0.95F, 0.999F});
      p.min_p = pick.of({0, 0, 0, 0.05F, 0.5F, 1});
      p.seed = pick.next();
      asks.push_back(a);
    }
    const auto got = run(asks, round == 0);
    for (size_t i = 0; i < rows; ++i) {
      ++draws;
      const TokenId want = on_cpu(asks[i]).id;
      if (got[i].id == want) continue;
      const SamplingParams& p = asks[i].params;
      if (++different < 10)
        printf("  row %zu: %d, CPU %d: t %g k %d p %g min %g\n", i, got[i].id, want,
               static_cast<double>(p.temperature), p.top_k, static_cast<double>(p.top_p),
               static_cast<double>(p.min_p));
    }
  }
  printf("  %zu of %zu draws differ from the CPU sampler's\n", different, draws);
  EXPECT_LE(different * 1000, draws);
}

// Pearson's statistic of draws with many seeds; 99.99 % of fair samplers stay below the bound.
TEST_F(SamplingTest, FrequenciesFollowTheDistribution) {
  constexpr uint32_t kVocab = 5000;
  constexpr size_t kRows = 500;
  const int rounds = problems({40}, {2}).front();
  open(kVocab, kRows);
  std::vector<float> logits(kVocab, -60.0F);
  const std::vector<double> p = {0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005};
  for (size_t i = 0; i < p.size(); ++i) logits[i * 499 + 3] = static_cast<float>(std::log(p[i]));
  std::vector<double> counts(p.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<Ask> asks;
    for (size_t i = 0; i < kRows; ++i) {
      Ask a{&logits, {}, {}, 0};
      a.params.seed = static_cast<uint64_t>(round) * kRows + i;
      asks.push_back(a);
    }
    for (const SampledToken& t : run(asks, round == 0)) {
      ASSERT_EQ((t.id - 3) % 499, 0);
      counts[static_cast<size_t>((t.id - 3) / 499)] += 1;
    }
  }
  double statistic = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * kRows * rounds;
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(statistic, 33.7) << "chi-square, 9 degrees of freedom";
}

TEST_F(SamplingTest, TiesMasksAndWideNucleiAreCutAsOnTheCpu) {
  constexpr uint32_t kVocab = 40000;
  open(kVocab, 64);
  std::vector<std::vector<float>> rows;
  rows.emplace_back(kVocab, 1.0F);  // everything ties
  rows.push_back(normal_logits(kVocab, 1, 1));
  for (float& x : rows[1]) x = std::round(2 * x) / 2;  // a few values, thousands of ties each
  rows.emplace_back(kVocab, -kInf);                    // a mask that leaves three
  rows[2][17] = 1;
  rows[2][20000] = 2;
  rows[2][39999] = 1;
  rows.push_back(normal_logits(kVocab, 2, 1e-4F));  // flat: the nucleus is nearly everything
  rows.emplace_back(kVocab, -3e38F);                // overflowing distances
  rows[4][5] = 3e38F;
  rows[4][6] = 3e38F;
  rows.push_back(normal_logits(kVocab, 3, 1));
  for (size_t i = 0; i < kVocab; ++i) rows[5][i] = 1 + 1e-7F * static_cast<float>(i % 5);
  rows.emplace_back(kVocab, kNan);
  rows[6][9] = 0;
  Picker pick(11);
  for (const int32_t k : problems({0, 1, 2, 5, 50, 900, 1024, 1025, 5000, 39999}, {0, 50, 1025})) {
    for (const float p : problems({1.0F, 0.0F, 0.3F, 0.9F, 0.9999F}, {1.0F, 0.9F})) {
      std::vector<Ask> asks;
      for (const auto& r : rows) {
        Ask a{&r, {}, {}, 0};
        a.params.top_k = k;
        a.params.top_p = p;
        a.params.seed = pick.next();
        a.params.temperature = pick.of({0.5F, 1, 1});
        a.params.logprobs = pick.of({-1, 0, 4, 60}) > 0 ? 60 : -1;
        asks.push_back(a);
      }
      expect_same(asks, ("k " + std::to_string(k)).c_str());
    }
  }
}

TEST_F(SamplingTest, PenaltiesAndBiasesAreTheCpuSamplers) {
  constexpr uint32_t kVocab = 152064;
  const size_t rows = problems({32u}, {9u}).front();
  const int rounds = problems({6}, {1}).front();
  open(kVocab, static_cast<uint32_t>(rows));
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < rows; ++i) logits.push_back(normal_logits(kVocab, 100 + i, 2));
  Picker pick(3);
  for (int round = 0; round < rounds; ++round) {
    std::vector<Ask> asks;
    for (size_t i = 0; i < rows; ++i) {
      Ask a{&logits[i], {}, {}, 0};
      const auto order = [&](TokenId x, TokenId y) {
        return logits[i][static_cast<size_t>(x)] > logits[i][static_cast<size_t>(y)];
      };
      std::vector<TokenId> ids(kVocab);
      for (size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<TokenId>(k);
      std::partial_sort(ids.begin(), ids.begin() + 64, ids.end(), order);
      // Histories and biases that hit the best tokens, some often, and nonsense ids.
      for (size_t k = pick.next() % 3000; k > 0; --k) {
        const uint64_t r = pick.next();
        a.history.push_back(r % 4 == 0 ? static_cast<TokenId>(r % kVocab) : ids[r / 4 % 64]);
      }
      if (!a.history.empty()) a.history[0] = -5;
      a.prompt = a.history.empty() ? 0 : pick.next() % a.history.size();
      SamplingParams& p = a.params;
      p.temperature = pick.of({0, 0, 0.8F, 1});
      p.repetition_penalty = pick.of({1, 1.05F, 1.9F, 0});
      p.presence_penalty = pick.of({0, 0.5F, -1, kNan});
      p.frequency_penalty = pick.of({0, 0.01F, 1.5F, -0.001F});
      if (std::isnan(p.presence_penalty)) p.temperature = 0;
      p.top_k = static_cast<int32_t>(pick.of({0, 40}));
      p.top_p = pick.of({1, 0.9F});
      p.logprobs = static_cast<int32_t>(pick.of({-1, 20}));
      p.seed = pick.next();
      for (size_t k = pick.next() % 300; k > 0; --k)
        p.logit_bias.emplace_back(ids[pick.next() % 64],
                                  static_cast<float>(pick.next() % 200) / 50 - 2);
      p.logit_bias.emplace_back(-1, 5.0F);
      p.logit_bias.emplace_back(9000000, 5.0F);
      asks.push_back(a);
    }
    asks[7].params.logit_bias = {{12, kInf}, {77, 3e38F}};
    asks[8].params.logit_bias = {{12, -kInf}};
    expect_same(asks, ("round " + std::to_string(round)).c_str());
  }
}

TEST_F(SamplingTest, ScoresPromptRows) {
  constexpr uint32_t kVocab = 152064;
  open(kVocab, 4);
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < 4; ++i) logits.push_back(normal_logits(kVocab, 7 + i, 3));
  std::fill(logits[2].begin(), logits[2].end(), kNan);
  for (size_t i = 0; i < kVocab; ++i) logits[3][i] = static_cast<float>(i % 2);
  for (uint32_t i = 0; i < 4; ++i) put(i, logits[i]);
  engine::SampleBatch batch(kVocab, kTop, host_rows_, host_biases_);
  const std::vector<TokenId> tokens = {0, 151000, 5, 152063};
  const std::vector<int32_t> top = {0, 5, 3, 64};
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(batch.add_score(i, tokens[i], top[i]).has_value());
  launch(batch);
  const auto got = download(io_.logprobs, 4);
  const auto alternatives = download(io_.top, 4 * kTop);
  for (uint32_t i = 0; i < 4; ++i) {
    const SampledToken want = engine::score(logits[i], tokens[i], top[i]);
    EXPECT_NEAR(got[i], want.logprob, 2e-5F) << i;
    for (size_t k = 0; k < want.top.size(); ++k) {
      EXPECT_EQ(alternatives[i * kTop + k].id, want.top[k].id) << i << ' ' << k;
      EXPECT_NEAR(alternatives[i * kTop + k].logprob, want.top[k].logprob, 2e-5F) << i;
    }
  }
}

// A recorded launch sees what lies in its buffers when it is replayed, appends what it draws to the
// history, and leaves padding rows alone.
TEST_F(SamplingTest, ReplaysInAGraph) {
  constexpr uint32_t kVocab = 152064;
  open(kVocab, 4);
  const auto logits = normal_logits(kVocab, 4, 2);
  for (uint32_t i = 0; i < 4; ++i) put(i, logits);
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  ASSERT_CUDA(launch_sampling(plan_, logits_, stride_, 4, io_, false, stream));
  ASSERT_CUDA(launch_sampling(plan_, logits_, stride_, 4, io_, true, stream));  // overlapping
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<TokenId> history = {1, 2, 3};
  const uint64_t seeds = problems({20u}, {3u}).front();
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    engine::SampleBatch batch(kVocab, kTop, host_rows_, host_biases_);
    Ask a{&logits, {}, history, 1};
    a.params.seed = seed;
    a.params.repetition_penalty = 1.3F;
    a.params.top_p = 0.9F;
    ASSERT_TRUE(batch.add(1, a.params, {a.history, a.prompt}, 2).has_value());
    batch.pad(4);
    ASSERT_CUDA(cudaMemset(io_.tokens, 0xee, 4 * sizeof(int32_t)));
    if (seed == 0) {
      ASSERT_CUDA(cudaMemcpy(io_.history + 2 * kStride, history.data(), 3 * sizeof(int32_t),
                             cudaMemcpyHostToDevice));
    }
    ASSERT_CUDA(
        cudaMemcpy(rows_, batch.rows().data(), batch.rows().size_bytes(), cudaMemcpyHostToDevice));
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    const auto tokens = download(io_.tokens, 4);
    EXPECT_EQ(tokens[0], on_cpu(a).id) << seed;
    for (size_t i = 1; i < 4; ++i) EXPECT_EQ(tokens[i], static_cast<int32_t>(0xeeeeeeee));
    history.push_back(tokens[0]);
    EXPECT_EQ(download(io_.history + 2 * kStride, history.size()), history);
  }
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(SamplingTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(plan_sampling(kMaxSampledVocab + 1).cluster, 0u);
  EXPECT_EQ(prepare_sampling(plan_sampling(0)), cudaErrorInvalidValue);
  open(kMaxSampledVocab, 1);
  const auto logits = normal_logits(kMaxSampledVocab, 4, 2);
  Ask a{&logits, {}, {}, 0};
  a.params.top_k = 50;
  a.params.top_p = 0.9F;
  expect_same({a}, "largest vocabulary");
}

}  // namespace
}  // namespace tandem::cuda
