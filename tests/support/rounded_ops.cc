#include "tests/support/rounded_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>
#include <vector>

#include "common/engine/cpu/cpu_ops.h"
#include "common/kv/codec.h"

namespace tandem::testing {
namespace {

using engine::Activation;
using engine::AttentionShape;
using engine::EmbeddingWeight;
using engine::KvPages;
using engine::LinearWeight;
using engine::MoeShape;
using engine::MoeWeight;
using engine::QkvParams;
using engine::RopeTable;
using engine::StepView;
using engine::VectorWeight;
using model::HostTensor;

float rounded(float x) { return to_float(to_bf16(x)); }

class RoundedOps final : public engine::Ops {
 public:
  RoundedOps(std::unique_ptr<engine::Ops> ops, uint32_t fp8_above)
      : ops_(std::move(ops)), fp8_above_(fp8_above) {}

  Result<std::unique_ptr<LinearWeight>> load_linear(
      std::span<const HostTensor* const> parts,
      std::span<const HostTensor* const> biases) override {
    return ops_->load_linear(parts, biases);
  }
  Result<std::unique_ptr<LinearWeight>> load_gate_up(
      std::span<const HostTensor* const> parts,
      std::span<const HostTensor* const> biases) override {
    return ops_->load_gate_up(parts, biases);
  }
  Result<std::unique_ptr<VectorWeight>> load_vector(const HostTensor& values) override {
    TANDEM_ASSIGN(auto weight, ops_->load_vector(values));
    std::vector<float>& own = norms_[weight.get()];
    own.resize(static_cast<size_t>(values.elements()));
    model::read_row(values, 0, own);
    return weight;
  }
  Result<std::unique_ptr<EmbeddingWeight>> load_embedding(const HostTensor& table) override {
    return ops_->load_embedding(table);
  }
  Result<std::unique_ptr<LinearWeight>> load_tied_head(const EmbeddingWeight& table) override {
    return ops_->load_tied_head(table);
  }
  Result<std::unique_ptr<MoeWeight>> load_moe(const MoeShape& shape, const HostTensor& router,
                                              std::span<const HostTensor* const> gate,
                                              std::span<const HostTensor* const> up,
                                              std::span<const HostTensor* const> down) override {
    return ops_->load_moe(shape, router, gate, up, down);
  }
  Status load_rope(const std::function<RopeTable()>& whole) override {
    return ops_->load_rope(whole);
  }
  Result<Activation> allocate(int64_t rows, int64_t cols) override {
    return ops_->allocate(rows, cols);
  }
  Result<Activation> allocate_residual(int64_t rows, int64_t cols) override {
    normed_.resize(static_cast<size_t>(rows * cols));
    return ops_->allocate_residual(rows, cols);
  }
  Result<std::optional<uint64_t>> kv_memory_limit(const kv::KvLayout& layout) override {
    return ops_->kv_memory_limit(layout);
  }
  Result<std::unique_ptr<kv::PageMemory>> create_kv_memory(const kv::KvLayout& layout,
                                                           uint32_t blocks,
                                                           uint32_t tails) override {
    return ops_->create_kv_memory(layout, blocks, tails);
  }
  Status prepare(const KvPages& kv, uint32_t sequences, const engine::StepBody& body) override {
    return ops_->prepare(kv, sequences, body);
  }
  Status run_step(const engine::StepRequest& request, const engine::StepBody& body,
                  std::span<engine::RowResult> results) override {
    return ops_->run_step(request, body, results);
  }

  void embed(const StepView& step, const EmbeddingWeight& table, Activation out) override {
    ops_->embed(step, table, out);
  }
  void norm_linear(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                   const LinearWeight& weight, Activation out) override {
    const auto [normed, rest] = norm_rows(rows, x, norm, eps);
    ops_->norm_linear(rows, normed, norm, rest, weight, out);
    round_all(rows, out);
  }
  void write_kv(const StepView& step, uint32_t layer, const QkvParams& params, Activation qkv,
                const KvPages& kv) override {
    ops_->write_kv(step, layer, params, qkv, kv);
    round_all(step.rows(), qkv);
  }
  void layer_written(uint32_t layer) override { ops_->layer_written(layer); }
  void attention(const StepView& step, uint32_t layer, const AttentionShape& shape, Activation qkv,
                 const KvPages& kv, Activation out) override {
    ops_->attention(step, layer, shape, qkv, kv, out);
    round_all(step.rows(), out);
  }
  void linear_add(uint32_t rows, Activation in, const LinearWeight& weight, Activation x) override {
    const auto columns = static_cast<size_t>(in.cols);
    for (uint32_t r = 0; rows > fp8_above_ && r < rows; ++r)
      quantize({static_cast<float*>(in.data) + r * columns, columns});
    ops_->linear_add(rows, in, weight, x);
  }
  void norm_gate_up(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                    const LinearWeight& gate_up, Activation out) override {
    const auto [normed, rest] = norm_rows(rows, x, norm, eps);
    ops_->norm_gate_up(rows, normed, norm, rest, gate_up, out);
    round_all(rows, out);
  }
  void norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                const MoeShape& shape, const MoeWeight& weight) override {
    ops_->norm_moe(rows, x, norm, eps, shape, weight);
  }
  void outputs(Activation x, const VectorWeight& norm, float eps,
               const LinearWeight& head) override {
    ops_->outputs(x, norm, eps, head);
  }

  [[nodiscard]] size_t weight_bytes() const override { return ops_->weight_bytes(); }
  [[nodiscard]] std::string_view name() const override { return "rounded"; }

 private:
  static void round_all(uint32_t rows, Activation a) {
    auto* values = static_cast<float*>(a.data);
    for (int64_t i = 0; i < int64_t{rows} * a.cols; ++i) values[i] = rounded(values[i]);
  }

  static void quantize(std::span<float> row) {
    float most = 0;
    for (const float x : row) most = std::max(most, std::abs(x));
    const float scale = most > 0 ? most / kv::kMaxE4m3 : 1;
    for (float& x : row) x = kv::e4m3_to_float(kv::float_to_e4m3(x / scale)) * scale;
  }

  struct Normed {
    Activation rows;
    float eps = 0;
  };
  // Rows and an epsilon of which the other engine's norm makes our rounded normed rows, but for a
  // factor: that is 1 where epsilon is small beside the rows' squares.
  Normed norm_rows(uint32_t rows, Activation x, const VectorWeight& norm, float eps) {
    const std::vector<float>& scale = norms_.at(&norm);
    const size_t n = scale.size();
    double all = 0;
    for (uint32_t r = 0; r < rows; ++r) {
      const float* from = static_cast<const float*>(x.data) + r * n;
      float* to = normed_.data() + r * n;
      double squares = 0;
      for (size_t i = 0; i < n; ++i) squares += double{from[i]} * double{from[i]};
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + double{eps});
      for (size_t i = 0; i < n; ++i)
        to[i] = rounded(static_cast<float>(double{from[i]} * factor) * scale[i]);
      if (rows > fp8_above_) quantize({to, n});
      for (size_t i = 0; i < n; ++i) {
        to[i] /= scale[i];
        all += double{to[i]} * double{to[i]};
      }
    }
    const double mean = all / static_cast<double>(rows * n);
    return {{normed_.data(), rows, x.cols}, static_cast<float>(1 - mean)};
  }

  std::unique_ptr<engine::Ops> ops_;
  uint32_t fp8_above_;
  std::map<const VectorWeight*, std::vector<float>> norms_;
  std::vector<float> normed_;
};

}  // namespace

std::unique_ptr<engine::Ops> create_float_ops() {
  engine::CpuOptions options;
  // Several engines, and other programs, share the machine: their threads wait actively.
  options.threads = std::clamp(std::thread::hardware_concurrency() / 4, 1U, 4U);
  options.weights = DType::kF32;
  auto ops = engine::create_cpu_ops(options);
  EXPECT_TRUE(ops) << ops.error().to_string();
  return ops ? std::move(*ops) : nullptr;
}

std::unique_ptr<engine::Ops> create_rounded_ops(uint32_t fp8_above) {
  return std::make_unique<RoundedOps>(create_float_ops(), fp8_above);
}

}  // namespace tandem::testing
