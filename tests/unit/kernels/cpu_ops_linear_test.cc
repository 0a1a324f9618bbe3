#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/kernels/test_util.h"

namespace tandem::testing {
namespace {

using cpu::CpuIsa;
using engine::Activation;

struct Matrix {
  Matrix(int64_t rows, int64_t cols, uint64_t seed, float spread)
      : values(random_floats(static_cast<size_t>(rows * cols), seed, spread)) {
    tensor.name = "matrix";
    tensor.shape = {rows, cols};
    tensor.bytes = std::as_bytes(std::span(values));
  }
  std::vector<float> values;
  model::HostTensor tensor;
};

struct Vector {
  Vector(int64_t n, uint64_t seed) : values(random_floats(static_cast<size_t>(n), seed)) {
    tensor.name = "vector";
    tensor.shape = {n};
    tensor.bytes = std::as_bytes(std::span(values));
  }
  std::vector<float> values;
  model::HostTensor tensor;
};

std::vector<double> normed(std::span<const float> x, const std::vector<float>& scale, double eps) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = static_cast<double>(x[i]) * factor * static_cast<double>(scale[i]);
  return out;
}

std::vector<double> product(const std::vector<double>& x, const Matrix& w, const Vector* bias) {
  std::vector<double> y(static_cast<size_t>(w.tensor.rows()));
  for (size_t o = 0; o < y.size(); ++o) {
    double sum = bias == nullptr ? 0 : static_cast<double>(bias->values[o]);
    for (size_t k = 0; k < x.size(); ++k)
      sum += x[k] * static_cast<double>(w.values[o * x.size() + k]);
    y[o] = sum;
  }
  return y;
}

void fill(Activation a, std::span<const float> values) {
  std::copy(values.begin(), values.end(), static_cast<float*>(a.data));
}
std::span<const float> row(Activation a, int64_t r) {
  return {static_cast<const float*>(a.data) + r * a.cols, static_cast<size_t>(a.cols)};
}

class CpuLinear : public ::testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  CpuIsa isa() const { return std::get<0>(GetParam()); }
  DType type() const { return std::get<1>(GetParam()); }
  // Inputs are arbitrary floats: bf16 weights, and activations where the kernels round them, are
  // each 2^-9 off at most, and some tests chain two projections.
  double tolerance() const { return type() == DType::kF32 ? 3e-6 : 1e-2; }
};

TEST_P(CpuLinear, FusedPartsBiasAndNormMatchDoublePrecision) {
  auto ops = make_ops(isa(), type(), 2);
  for (const auto& [in, outs] :
       std::vector<std::pair<int64_t, std::vector<int64_t>>>{{33, {17, 5, 5}},
                                                             {64, {64, 32, 32}},
                                                             {576, {576, 192, 192}},
                                                             {100, {1, 50}},
                                                             {7, {40, 3, 16}}}) {
    std::vector<Matrix> weights;
    std::vector<Vector> biases;
    int64_t out = 0;
    for (size_t i = 0; i < outs.size(); ++i) {
      weights.emplace_back(outs[i], in, 10 + i, 0.2F);
      biases.emplace_back(outs[i], 20 + i);
      out += outs[i];
    }
    std::vector<const model::HostTensor*> parts;
    std::vector<const model::HostTensor*> bias_parts;
    for (size_t i = 0; i < outs.size(); ++i) {
      weights[i].tensor.bytes = std::as_bytes(std::span(weights[i].values));
      biases[i].tensor.bytes = std::as_bytes(std::span(biases[i].values));
      parts.push_back(&weights[i].tensor);
      bias_parts.push_back(i == 1 ? nullptr : &biases[i].tensor);  // parts may lack one
    }
    auto linear = *ops->load_linear(parts, bias_parts);
    ASSERT_EQ(linear->out, out);
    Vector scale(in, 30);
    auto norm = *ops->load_vector(scale.tensor);
    for (const uint32_t rows : {1U, 2U, 3U, 8U, 9U, 31U, 70U, 150U}) {
      Activation x = *ops->allocate(rows, in);
      Activation y = *ops->allocate(rows, out);
      fill(x, random_floats(static_cast<size_t>(rows * in), rows));
      fill(y, poison(static_cast<size_t>(rows * out)));
      ops->norm_linear(rows, x, *norm, 1e-5F, *linear, y);
      for (uint32_t r = 0; r<rows; r += rows> 9 ? 13 : 1) {
        const auto n = normed(row(x, r), scale.values, 1e-5);
        std::vector<double> want;
        for (size_t i = 0; i < outs.size(); ++i) {
          const auto part = product(n, weights[i], i == 1 ? nullptr : &biases[i]);
          want.insert(want.end(), part.begin(), part.end());
        }
        EXPECT_LT(relative_error(row(y, r), want), tolerance())
            << in << " row " << r << "/" << rows;
      }
    }
  }
}

TEST_P(CpuLinear, GateUpAndResidualMatchDoublePrecision) {
  auto ops = make_ops(isa(), type(), 2);
  const int64_t in = 50;
  const int64_t mid = 37;
  Matrix gate(mid, in, 1, 0.2F), up(mid, in, 2, 0.2F), down(in, mid, 3, 0.2F);
  Vector scale(in, 4), down_bias(in, 5), up_bias(mid, 6);
  const model::HostTensor* gu[] = {&gate.tensor, &up.tensor};
  const model::HostTensor* gub[] = {nullptr, &up_bias.tensor};
  const model::HostTensor* d[] = {&down.tensor};
  const model::HostTensor* db[] = {&down_bias.tensor};
  auto gate_up = *ops->load_linear(gu, gub);
  auto down_weight = *ops->load_linear(d, db);
  auto norm = *ops->load_vector(scale.tensor);
  for (const uint32_t rows : {1U, 5U, 8U, 40U, 131U}) {
    Activation x = *ops->allocate(rows, in);
    Activation h = *ops->allocate(rows, mid);
    const auto start = random_floats(static_cast<size_t>(rows * in), rows);
    fill(x, start);
    fill(h, poison(static_cast<size_t>(rows * mid)));
    ops->norm_gate_up(rows, x, *norm, 1e-5F, *gate_up, h);
    ops->linear_add(rows, h, *down_weight, x);
    for (uint32_t r = 0; r < rows; ++r) {
      const auto first = std::span(start).subspan(static_cast<size_t>(r * in), in);
      const auto n = normed(first, scale.values, 1e-5);
      const auto g = product(n, gate, nullptr);
      const auto u = product(n, up, &up_bias);
      std::vector<double> act(g.size());
      for (size_t i = 0; i < g.size(); ++i) act[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
      auto want = product(act, down, &down_bias);
      for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(first[i]);
      EXPECT_LT(relative_error(row(x, r), want), tolerance()) << "row " << r << "/" << rows;
    }
  }
}

TEST_P(CpuLinear, ARowIsTheSameBitsInAnyCompanyAndOnAnyThreads) {
  for (const int64_t in : {576, 1537}) {
    const int64_t out = 200;
    Matrix w(out, in, 1, 0.1F);
    Vector scale(in, 2);
    const auto data = random_floats(static_cast<size_t>(200 * in), 3);
    const model::HostTensor* parts[] = {&w.tensor};
    std::vector<std::vector<float>> reference;
    for (const uint32_t threads : {1U, 2U, 3U}) {
      auto ops = make_ops(isa(), type(), threads);
      auto linear = *ops->load_linear(parts, {});
      auto norm = *ops->load_vector(scale.tensor);
      Activation x = *ops->allocate(200, in);
      Activation y = *ops->allocate(200, out);
      if (reference.empty())
        for (int64_t r = 0; r < 200; ++r) {  // alone
          fill(x, std::span(data).subspan(static_cast<size_t>(r * in), static_cast<size_t>(in)));
          ops->norm_linear(1, x, *norm, 1e-5F, *linear, y);
          reference.emplace_back(row(y, 0).begin(), row(y, 0).end());
        }
      for (const uint32_t rows : {2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 12U, 13U, 17U, 64U, 200U}) {
        const int64_t skip = 200 - rows;  // other places in the batch each time
        fill(x, std::span(data).subspan(static_cast<size_t>(skip * in)));
        ops->norm_linear(rows, x, *norm, 1e-5F, *linear, y);
        for (int64_t r = 0; r < rows; ++r)
          ASSERT_TRUE(same_bits(row(y, r), reference[static_cast<size_t>(skip + r)]))
              << in << " row " << r << " of " << rows << ", " << threads << " threads";
      }
    }
  }
}

TEST_P(CpuLinear, TheTiedHeadReadsTheEmbeddingTable) {
  auto ops = make_ops(isa(), type(), 2);
  const int64_t vocab = 83, hidden = 30;
  Matrix table(vocab, hidden, 1, 1);
  Vector scale(hidden, 2);
  auto embedding = *ops->load_embedding(table.tensor);
  const size_t bytes = ops->weight_bytes();
  auto head = *ops->load_tied_head(*embedding);
  EXPECT_EQ(ops->weight_bytes(), bytes);
  auto norm = *ops->load_vector(scale.tensor);

  const std::vector<TokenId> tokens = {0, 82, 15, 16, 17, 40};
  const std::vector<uint32_t> positions(tokens.size());
  Activation x = *ops->allocate(6, hidden);
  ops->embed({tokens, positions, {}}, *embedding, x);
  for (size_t i = 0; i < tokens.size(); ++i)
    for (int64_t k = 0; k < hidden; ++k) {
      const float want = table.values[static_cast<size_t>(tokens[i] * hidden + k)];
      EXPECT_EQ(row(x, static_cast<int64_t>(i))[static_cast<size_t>(k)],
                type() == DType::kF32 ? want : to_float(to_bf16(want)));
    }
  const std::vector<uint32_t> rows = {5, 1};
  std::vector<float> logits = poison(static_cast<size_t>(2 * vocab));
  ops->logits(rows, x, *norm, 1e-5F, *head, logits.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto want = product(normed(row(x, rows[i]), scale.values, 1e-5), table, nullptr);
    EXPECT_LT(relative_error(std::span(logits).subspan(i * vocab, vocab), want), tolerance());
  }
}

TEST_P(CpuLinear, MixtureOfExpertsMatchesDoublePrecisionAndIgnoresCompany) {
  auto ops = make_ops(isa(), type(), 2);
  const int64_t hidden = 40, mid = 24;
  const uint32_t experts = 8, chosen = 3;
  Matrix router(experts, hidden, 1, 0.5F);
  Vector scale(hidden, 2);
  std::vector<Matrix> gate, up, down;
  for (uint32_t e = 0; e < experts; ++e) {
    gate.emplace_back(mid, hidden, 100 + e, 0.2F);
    up.emplace_back(mid, hidden, 200 + e, 0.2F);
    down.emplace_back(hidden, mid, 300 + e, 0.2F);
  }
  std::vector<const model::HostTensor*> g, u, d;
  for (uint32_t e = 0; e < experts; ++e) {
    for (Matrix* m : {&gate[e], &up[e], &down[e]})
      m->tensor.bytes = std::as_bytes(std::span(m->values));
    g.push_back(&gate[e].tensor);
    u.push_back(&up[e].tensor);
    d.push_back(&down[e].tensor);
  }
  auto norm = *ops->load_vector(scale.tensor);
  for (const bool normalize : {false, true}) {
    const engine::MoeShape shape{experts, chosen, static_cast<uint32_t>(mid), normalize};
    auto moe = *ops->load_moe(shape, router.tensor, g, u, d);
    const uint32_t rows = 90;
    const auto start = random_floats(rows * hidden, 5);
    Activation x = *ops->allocate(rows, hidden);
    fill(x, start);
    ops->norm_moe(rows, x, *norm, 1e-5F, shape, *moe);
    for (uint32_t r = 0; r < rows; ++r) {
      const auto first = std::span(start).subspan(r * hidden, hidden);
      const auto n = normed(first, scale.values, 1e-5);
      auto weights = product(n, router, nullptr);
      double total = 0;
      for (double& w : weights) total += w = std::exp(w);
      std::vector<size_t> order(experts);
      for (size_t e = 0; e < experts; ++e) order[e] = e;
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return weights[a] > weights[b]; });
      double kept = 0;
      for (uint32_t i = 0; i < chosen; ++i) kept += weights[order[i]];
      std::vector<double> want(first.begin(), first.end());
      for (uint32_t i = 0; i < chosen; ++i) {
        const size_t e = order[i];
        const auto ge = product(n, gate[e], nullptr);
        const auto ue = product(n, up[e], nullptr);
        std::vector<double> act(ge.size());
        for (size_t k = 0; k < ge.size(); ++k) act[k] = ge[k] / (1 + std::exp(-ge[k])) * ue[k];
        const auto y = product(act, down[e], nullptr);
        for (size_t k = 0; k < want.size(); ++k)
          want[k] += weights[e] / (normalize ? kept : total) * y[k];
      }
      EXPECT_LT(relative_error(row(x, r), want), tolerance()) << r;
    }
    Activation alone = *ops->allocate(1, hidden);
    for (const uint32_t r : {0U, 17U, 89U}) {
      fill(alone, std::span(start).subspan(r * hidden, hidden));
      ops->norm_moe(1, alone, *norm, 1e-5F, shape, *moe);
      EXPECT_TRUE(same_bits(row(alone, 0), row(x, r))) << r;
    }
  }
}

TEST(CpuOps, RefusesWhatItCannotDo) {
  engine::CpuOptions options;
  options.weights = DType::kF16;
  EXPECT_EQ(engine::create_cpu_ops(options).error().code, ErrorCode::kUnsupported);
  options.weights = DType::kF32;
  options.threads = 2;
  options.cpus = {0};
  EXPECT_EQ(engine::create_cpu_ops(options).error().param, "cpus");
  options.threads = 1;
  options.cpus = {100000};
  EXPECT_EQ(engine::create_cpu_ops(options).error().param, "cpus");
}

TEST(CpuOps, RefusesTensorsThatDoNotFitTogether) {
  auto ops = make_ops(cpu::best_isa(), DType::kF32, 1);
  Matrix a(4, 8, 1, 1), b(4, 7, 2, 1);
  b.tensor.name = "layers.3.k_proj";
  const model::HostTensor* parts[] = {&a.tensor, &b.tensor};
  const auto refused = ops->load_linear(parts, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().detail.find("layers.3.k_proj"), std::string::npos);
}

std::string linear_name(const ::testing::TestParamInfo<std::tuple<CpuIsa, DType>>& info) {
  return std::string(to_string(std::get<0>(info.param))) + "_" +
         std::string(to_string(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuLinear,
                         ::testing::Combine(::testing::ValuesIn(cpu::supported_isas()),
                                            ::testing::Values(DType::kF32, DType::kBf16)),
                         linear_name);

}  // namespace
}  // namespace tandem::testing
