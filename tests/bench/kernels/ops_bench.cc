#include <cstdio>
#include <functional>
#include <random>

#include "common/engine/cpu/cpu_ops.h"
#include "tests/bench/kernels/bench.h"
#include "tests/bench/kernels/ceilings.h"
#include "tests/bench/kernels/report.h"

namespace tandem::bench {
namespace {

using engine::Activation;

// SmolLM2-135M.
constexpr int64_t kHidden = 576;
constexpr int64_t kInner = 1536;
constexpr int64_t kVocab = 49152;
constexpr uint32_t kHeads = 9;
constexpr uint32_t kKvHeads = 3;
constexpr uint32_t kHeadDim = 64;

struct Tensor {
  Tensor(std::vector<int64_t> shape, float spread) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, spread);
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    values.resize(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = i < 4096 ? normal(random) : values[i - 4096];
    view.name = "bench";
    view.shape = std::move(shape);
    view.bytes = std::as_bytes(std::span(values));
  }
  std::vector<float> values;
  model::HostTensor view;
};

class OpsBench {
 public:
  OpsBench(engine::Ops& ops, Ceilings& ceilings, const Options& options, const Clock& clock)
      : ops_(ops), ceilings_(ceilings), options_(options), clock_(clock) {}

  Status linear(const char* what, int64_t in, const std::vector<int64_t>& outs,
                const std::vector<uint32_t>& row_counts);
  Status attention(uint32_t rows, uint32_t before);
  Status write_kv(uint32_t rows);

 private:
  double time(const std::function<void()>& body) {
    body();
    std::vector<double> seconds;
    for (uint32_t r = 0; r < options_.rounds * 5; ++r) {
      const TimePoint start = clock_.now();
      body();
      seconds.push_back(to_seconds(clock_.now() - start));
    }
    return median(seconds);
  }
  void kv_step(uint32_t rows, uint32_t before,
               const std::function<void(const engine::StepView&, const engine::KvPages&, Activation,
                                        Activation)>& body);

  engine::Ops& ops_;
  Ceilings& ceilings_;
  const Options& options_;
  const Clock& clock_;
};

Status OpsBench::linear(const char* what, int64_t in, const std::vector<int64_t>& outs,
                        const std::vector<uint32_t>& row_counts) {
  const Tensor norm({in}, 1);
  TANDEM_ASSIGN(const auto norm_weight, ops_.load_vector(norm.view));
  std::vector<Tensor> tensors;
  int64_t out = 0;
  for (const int64_t o : outs) {
    tensors.emplace_back(std::vector<int64_t>{o, in}, 0.05F);
    out += o;
  }
  std::vector<const model::HostTensor*> parts;
  for (Tensor& t : tensors) {
    t.view.bytes = std::as_bytes(std::span(t.values));
    parts.push_back(&t.view);
  }
  // Enough copies that none is in a cache when its turn comes, as in a model's layers.
  const size_t one = static_cast<size_t>(in * out) * dtype_bytes(options_.weights);
  const size_t copies = std::max<size_t>(1, (size_t{160} << 20) / one);
  std::vector<std::unique_ptr<engine::LinearWeight>> weights;
  for (size_t i = 0; i < copies; ++i) {
    TANDEM_ASSIGN(auto w, ops_.load_linear(parts, {}));
    weights.push_back(std::move(w));
  }
  for (const uint32_t rows : row_counts) {
    TANDEM_ASSIGN(const Activation x, ops_.allocate(rows, in));
    TANDEM_ASSIGN(const Activation y, ops_.allocate(rows, out));
    const Tensor values({rows, in}, 1);
    std::copy(values.values.begin(), values.values.end(), static_cast<float*>(x.data));
    const double stream = ceilings_.read_stream(1);
    const double peak =
        options_.weights == DType::kBf16 ? ceilings_.flops_bf16() : ceilings_.flops_f32();
    size_t next = 0;
    const bool narrow = rows <= 16;
    const size_t batch =
        narrow ? copies : 1;  // time the whole round: threads must not idle between
    const double s =
        time([&] {
          for (size_t i = 0; i < batch; ++i)
            ops_.norm_linear(rows, x, *norm_weight, 1e-5F, *weights[next++ % copies], y);
        }) /
        static_cast<double>(batch);
    const std::string shape =
        std::to_string(rows) + " x " + std::to_string(in) + " -> " + std::to_string(out);
    const double flops = 2.0 * rows * static_cast<double>(in * out);
    if (narrow)
      print_row({what, shape, s, static_cast<double>(one) / s, "GB/s", stream, ""});
    else
      print_row({what, shape, s, flops / s, "GFLOP/s", peak, ""});
  }
  return {};
}

void OpsBench::kv_step(uint32_t rows, uint32_t before,
                       const std::function<void(const engine::StepView&, const engine::KvPages&,
                                                Activation, Activation)>& body) {
  const kv::KvLayout layout{1, kKvHeads, kHeadDim, options_.format};
  const uint32_t blocks = (before + rows + 15) / 16;
  std::vector<std::byte> pages(layout.page_bytes() * blocks, std::byte{0x3c});
  std::vector<std::byte> tail(layout.tail_layout().page_bytes(), std::byte{0x3c});
  const engine::KvPages kv{layout, pages.data(), blocks, tail.data(), 1};
  std::vector<BlockId> ids;
  for (uint32_t b = 0; b < blocks; ++b) ids.push_back(BlockId{b});
  std::vector<TokenId> tokens(rows);
  std::vector<uint32_t> positions(rows);
  for (uint32_t r = 0; r < rows; ++r) positions[r] = before + r;
  const engine::SequenceView view{0, rows, before, ids, 0};
  const engine::StepView step{tokens, positions, {&view, 1}};
  auto qkv = ops_.allocate(rows, (kHeads + 2 * kKvHeads) * kHeadDim);
  auto out = ops_.allocate(rows, kHeads * kHeadDim);
  const Tensor values({rows, (kHeads + 2 * kKvHeads) * kHeadDim}, 1);
  std::copy(values.values.begin(), values.values.end(), static_cast<float*>(qkv->data));
  body(step, kv, *qkv, *out);
}

Status OpsBench::attention(uint32_t rows, uint32_t before) {
  kv_step(rows, before, [&](const auto& step, const auto& kv, Activation qkv, Activation out) {
    const engine::AttentionShape shape{kHeads, kKvHeads, kHeadDim, 0.125F, 0};
    const double peak = ceilings_.flops_f32();
    const double s = time([&] { ops_.attention(step, 0, shape, qkv, kv, out); });
    double keys = 0;
    for (uint32_t r = 0; r < rows; ++r) keys += before + r + 1;
    const double flops = 4.0 * keys * kHeads * kHeadDim;
    print_row({"attention", std::to_string(rows) + " after " + std::to_string(before), s, flops / s,
               "GFLOP/s", peak, std::string(to_string(options_.format))});
  });
  return {};
}

Status OpsBench::write_kv(uint32_t rows) {
  kv_step(rows, 0, [&](const auto& step, const auto& kv, Activation qkv, Activation) {
    std::vector<float> ones(size_t{rows} * kHeadDim / 2, 0.7F);
    engine::QkvParams params;
    params.shape = {kHeads, kKvHeads, kHeadDim, 0.125F, 0};
    params.rope = {ones.data(), ones.data(), rows, kHeadDim};
    const double stream = ceilings_.read_stream(1);
    const double s = time([&] { ops_.write_kv(step, 0, params, qkv, kv); });
    const double bytes = static_cast<double>(rows) * (kHeads + 2 * kKvHeads) * kHeadDim * 4;
    print_row({"rope and KV write", std::to_string(rows) + " rows", s, bytes / s, "GB/s", stream,
               std::string(to_string(options_.format))});
  });
  return {};
}

}  // namespace

Status bench_ops(const Options& options, const Clock& clock) {
  engine::CpuOptions cpu_options;
  cpu_options.threads = options.threads;
  cpu_options.cpus = options.cpus;
  cpu_options.weights = options.weights;
  cpu_options.isa = options.isa;
  TANDEM_ASSIGN(const auto ops, engine::create_cpu_ops(cpu_options));
  Ceilings ceilings(options.threads, options.cpus, options.isa, clock);
  std::printf("%s, %s weights, %u threads\n", std::string(ops->name()).c_str(),
              std::string(to_string(options.weights)).c_str(), options.threads);
  print_header();
  OpsBench bench(*ops, ceilings, options, clock);
  const std::vector<uint32_t> rows = {1, 2, 4, 8, 16, 64, 512};
  TANDEM_TRY(bench.linear("norm + qkv", kHidden, {kHidden, 192, 192}, rows));
  TANDEM_TRY(bench.linear("o", kHidden, {kHidden}, rows));
  TANDEM_TRY(bench.linear("gate | up", kHidden, {kInner, kInner}, rows));
  TANDEM_TRY(bench.linear("down", kInner, {kHidden}, rows));
  TANDEM_TRY(bench.linear("head", kHidden, {kVocab}, {1, 4}));
  TANDEM_TRY(bench.attention(512, 0));
  for (const uint32_t before : {128U, 512U, 2048U}) TANDEM_TRY(bench.attention(1, before));
  TANDEM_TRY(bench.write_kv(512));
  TANDEM_TRY(bench.write_kv(1));
  return {};
}

}  // namespace tandem::bench
