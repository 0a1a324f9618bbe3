#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/cuda/bench/bench_linear.h"
#include "common/engine/cuda/fp8_row.h"
#include "common/engine/cuda/linear.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/rows.h"

namespace tandem::bench {
namespace {

engine::WideTask fp8_task(const Fp8Matrix& weight, const Fp8Matrix& x, int64_t in, int64_t out,
                          uint32_t rows) {
  engine::WideTask task;
  task.weight = weight.bits.data();
  task.weight_scales = weight.scales.as<float>();
  task.x = x.bits.data();
  task.x_scales = x.scales.as<float>();
  task.in = in;
  task.out = out;
  task.rows = rows;
  return task;
}

Result<double> fp8_ceiling(BenchCard& card, engine::WideLinear wide) {
  constexpr int64_t kSide = 8192;
  TANDEM_ASSIGN(const auto values, card.normal_bf16(kSide * kSide, 1));
  TANDEM_ASSIGN(const auto weight, quantized(card, values.as<Bf16>(), kSide, kSide));
  TANDEM_ASSIGN(const auto x, quantized(card, values.as<Bf16>(), kSide, kSide));
  TANDEM_ASSIGN(const auto out, card.zeros(kSide * kSide * sizeof(Bf16)));
  engine::WideTask task = fp8_task(weight, x, kSide, kSide, kSide);
  task.result = out.data();
  TANDEM_TRY(wide.prepare({&task, 1}, task.rows, card.stream()));
  TANDEM_ASSIGN(const double s,
                card.seconds([&](uint32_t) { return wide.run(task, card.stream().get()); }, 1));
  return 2.0 * kSide * kSide * kSide / s;
}

DeviceRow against_bf16(DeviceRow row, double ceiling, double seconds, double bf16) {
  row.ceiling = ceiling * 1e-12;
  row.ratio = row.rate / row.ceiling;
  row.against = "fp8 8192^3";
  char note[64];
  std::snprintf(note, sizeof note, "%.2f of bf16's %.1f us", seconds / bf16, bf16 * 1e6);
  row.note = note;
  return row;
}

// One projection's product alone.
Status bench_product(BenchCard& card, const Projection& p, const cuda::DeviceBuffer& pool,
                     engine::WideLinear& wide, double ceiling, const RowSink& sink) {
  constexpr uint32_t kMost = 8192;
  TANDEM_ASSIGN(const auto x, card.normal_bf16(static_cast<size_t>(kMost * p.in), 1));
  TANDEM_ASSIGN(const auto out, card.zeros(static_cast<size_t>(kMost * p.out) * sizeof(float)));
  TANDEM_ASSIGN(const auto weight, quantized(card, pool.as<Bf16>(), p.out, p.in));
  TANDEM_ASSIGN(const auto rows_fp8, quantized(card, x.as<Bf16>(), kMost, p.in));
  engine::WideTask task = fp8_task(weight, rows_fp8, p.in, p.out, kMost);
  task.output = p.epilogue == cuda::SmallEpilogue::kAdd ? engine::WideOutput::kAdd
                                                        : engine::WideOutput::kStore;
  task.result = out.data();
  engine::WideTask plain = task;
  plain.weight = pool.data();
  plain.x = x.data();
  plain.weight_scales = plain.x_scales = nullptr;
  const engine::WideTask both[] = {task, plain};
  TANDEM_TRY(wide.prepare(both, kMost, card.stream()));
  for (const uint32_t rows : {128u, 512u, 2048u, kMost}) {
    task.rows = plain.rows = rows;
    TANDEM_ASSIGN(const double s,
                  card.seconds([&](uint32_t) { return wide.run(task, card.stream().get()); }, 1));
    TANDEM_ASSIGN(const double bf16,
                  card.seconds([&](uint32_t) { return wide.run(plain, card.stream().get()); }, 1));
    const double flops = 2.0 * rows * static_cast<double>(p.in * p.out);
    sink(against_bf16(flops_row(card, "linear fp8, cuBLASLt", shape_of(p, rows), s, flops, 0),
                      ceiling, s, bf16));
  }
  return {};
}

// The kernels that make FP8 rows, and those whose bf16 rows they spare.
Status bench_rows(BenchCard& card, const cuda::DeviceBuffer& pool, const RowSink& sink) {
  constexpr uint32_t kRows = 2048;
  constexpr auto kInputs = static_cast<size_t>(kRows * kInner);
  TANDEM_ASSIGN(const auto x, card.normal_float(static_cast<size_t>(kRows * kHidden), 1));
  TANDEM_ASSIGN(const auto norm, card.normal_float(static_cast<size_t>(kHidden), 1));
  TANDEM_ASSIGN(const auto halves, card.zeros(kInputs * sizeof(Bf16)));
  TANDEM_ASSIGN(const auto bits, card.zeros(kInputs));
  TANDEM_ASSIGN(const auto scales, card.zeros(kRows * sizeof(float)));
  const cuda::Fp8Out to{bits.as<uint8_t>(), scales.as<float>()};
  const cudaStream_t stream = card.stream().get();
  const auto* pairs = pool.as<Bf16>();
  struct Case {
    const char* what;
    int64_t cols;
    double bytes;  // an element
    std::function<cudaError_t()> run;
  };
  const Case cases[] = {
      {"rms_norm", kHidden, 6,
       [&] {
         return cuda::rms_norm(
             {x.as<float>(), nullptr, norm.as<float>(), 1e-6F, kRows, kHidden, halves.as<Bf16>()},
             stream);
       }},
      {"quantize_normed", kHidden, 5,
       [&] {
         return cuda::quantize_normed(
             {x.as<float>(), nullptr, norm.as<float>(), 1e-6F, kRows, kHidden, to}, stream);
       }},
      {"quantize_rows", kHidden, 3,
       [&] {
         return cuda::quantize_rows({pairs, kRows, kHidden, to}, stream);
       }},
      {"quantize_rows", kInner, 3,
       [&] {
         return cuda::quantize_rows({pairs, kRows, kInner, to}, stream);
       }},
      {"silu_mul", kInner, 6,
       [&] { return cuda::silu_mul(kRows, kInner, pairs, halves.as<Bf16>(), stream); }},
      {"quantize_silu", kInner, 5,
       [&] {
         return cuda::quantize_silu({pairs, kRows, kInner, to}, stream);
       }},
  };
  for (const Case& c : cases) {
    TANDEM_ASSIGN(const double s, card.seconds(
                                      [&](uint32_t) -> Status {
                                        TANDEM_CUDA_TRY(c.run());
                                        return {};
                                      },
                                      1));
    sink(bytes_row(card, c.what, std::to_string(kRows) + " x " + std::to_string(c.cols), s,
                   c.bytes * kRows * static_cast<double>(c.cols), 0));
  }
  return {};
}

// The projections of a layer as the engine runs them: norms, rows to FP8, products, SiLU.
class Layer {
 public:
  static constexpr uint32_t kMost = 8192;

  [[nodiscard]] static Result<Layer> open(BenchCard& card, const LinearLibrary& library,
                                          const cuda::DeviceBuffer& pool, bool fp8) {
    Layer layer;
    engine::LinearRunner::Shapes shapes;
    std::vector<engine::LinearRef>* const of[] = {&shapes.store, &shapes.add, &shapes.gate_up,
                                                  &shapes.add};
    for (size_t i = 0; i < layer.refs_.size(); ++i) {
      const Projection& p = kProjections[i];
      engine::LinearRef& ref = layer.refs_[i];
      ref.in = p.in;
      ref.out = p.out;
      // Each has memory of its own: a layer reads all of it, and no cache holds that.
      if (fp8) {
        TANDEM_ASSIGN(layer.matrices_[i], quantized(card, pool.as<Bf16>(), p.out, p.in));
        ref.fp8 = layer.matrices_[i].bits.as<uint8_t>();
        ref.scales = layer.matrices_[i].scales.as<float>();
      } else {
        TANDEM_ASSIGN(layer.matrices_[i].bits,
                      card.normal_bf16(static_cast<size_t>(p.in * p.out), 0.02F));
        ref.weight = layer.matrices_[i].bits.as<Bf16>();
      }
      of[i]->push_back(ref);
    }
    const engine::LinearRunner::Limits limits{kMost, kHidden, 2 * kInner, fp8 ? kHidden : 0};
    TANDEM_ASSIGN(layer.scratch_, card.zeros(engine::LinearRunner::scratch_bytes(limits)));
    TANDEM_ASSIGN(auto runner,
                  engine::LinearRunner::create({&library.lt,
                                                reinterpret_cast<std::byte*>(layer.scratch_.data()),
                                                limits,
                                                card.info().name,
                                                static_cast<uint32_t>(card.info().multiprocessors),
                                                {}}));
    layer.runner_ = std::make_unique<engine::LinearRunner>(std::move(runner));
    TANDEM_ASSIGN(layer.x_, card.normal_float(static_cast<size_t>(kMost * kHidden), 1));
    TANDEM_ASSIGN(layer.norm_, card.normal_float(static_cast<size_t>(kHidden), 1));
    TANDEM_ASSIGN(layer.qkv_, card.normal_bf16(static_cast<size_t>(kMost * kQkv), 1));
    TANDEM_ASSIGN(layer.attended_, card.normal_bf16(static_cast<size_t>(kMost * kHidden), 1));
    TANDEM_ASSIGN(layer.inner_, card.normal_bf16(static_cast<size_t>(kMost * kInner), 1));
    TANDEM_ASSIGN(const auto input, card.normal_bf16(static_cast<size_t>(kMost * kInner), 1));
    TANDEM_ASSIGN(const auto result,
                  card.zeros(static_cast<size_t>(kMost * kInner) * 2 * sizeof(Bf16)));
    TANDEM_TRY(layer.runner_->prepare(shapes, {input.data(), result.data(), result.bytes()},
                                      card.stream()));
    return layer;
  }

  // Its `part`-th projection.
  [[nodiscard]] Status run(size_t part, uint32_t rows, cudaStream_t stream) {
    const engine::NormInput x{x_.as<float>(), nullptr, norm_.as<float>(), 1e-6F};
    const engine::LinearRef& ref = refs_[part];
    if (part == 0) return runner_->norm_linear(rows, x, ref, qkv_.as<Bf16>(), stream);
    if (part == 2) return runner_->norm_gate_up(rows, x, ref, inner_.as<Bf16>(), stream);
    return runner_->linear_add(rows, part == 1 ? attended_.as<Bf16>() : inner_.as<Bf16>(), ref,
                               x_.as<float>(), stream);
  }

  [[nodiscard]] Result<double> seconds(BenchCard& card, size_t first, size_t count, uint32_t rows) {
    return card.seconds(
        [&](uint32_t) -> Status {
          for (size_t i = first; i < first + count; ++i)
            TANDEM_TRY(run(i, rows, card.stream().get()));
          return {};
        },
        1);
  }

 private:
  std::array<engine::LinearRef, 4> refs_;
  std::array<Fp8Matrix, 4> matrices_;
  cuda::DeviceBuffer scratch_, x_, norm_, qkv_, attended_, inner_;
  std::unique_ptr<engine::LinearRunner> runner_;
};

Status bench_layer(BenchCard& card, const LinearLibrary& library, const cuda::DeviceBuffer& pool,
                   double ceiling, const RowSink& sink) {
  TANDEM_ASSIGN(Layer bf16, Layer::open(card, library, pool, false));
  TANDEM_ASSIGN(Layer fp8, Layer::open(card, library, pool, true));
  const auto measure = [&](const std::string& shape, size_t first, size_t count, uint32_t rows,
                           double weights) -> Status {
    TANDEM_ASSIGN(const double plain, bf16.seconds(card, first, count, rows));
    TANDEM_ASSIGN(const double s, fp8.seconds(card, first, count, rows));
    const double flops = 2.0 * rows * weights;
    sink(against_bf16(flops_row(card, "linear fp8 with its rows", shape, s, flops, 0), ceiling, s,
                      plain));
    return {};
  };
  double all = 0;
  for (size_t i = 0; i < 4; ++i) {
    const Projection& p = kProjections[i];
    const auto weights = static_cast<double>(p.in * p.out);
    all += weights;
    // A down projection takes its rows as the gate has left them.
    TANDEM_TRY(fp8.run(2, Layer::kMost, card.stream().get()));
    for (const uint32_t rows : {512u, 2048u, Layer::kMost})
      TANDEM_TRY(measure(shape_of(p, rows), i, 1, rows, weights));
  }
  for (const uint32_t rows : {1u, 8u, 16u, 32u, 64u, 128u, 512u, 2048u, Layer::kMost})
    TANDEM_TRY(measure("layer of " + std::to_string(rows), 0, 4, rows, all));
  return {};
}

}  // namespace

Result<Fp8Matrix> quantized(BenchCard& card, const Bf16* x, int64_t rows, int64_t cols) {
  TANDEM_CUDA_TRY(cuda::prepare_fp8_rows());
  Fp8Matrix m;
  TANDEM_ASSIGN(m.bits, card.zeros(static_cast<size_t>(rows * cols)));
  TANDEM_ASSIGN(m.scales, card.zeros(static_cast<size_t>(rows) * sizeof(float)));
  TANDEM_CUDA_TRY(cuda::quantize_rows(
      {x, static_cast<uint32_t>(rows), cols, {m.bits.as<uint8_t>(), m.scales.as<float>()}},
      card.stream().get()));
  return m;
}

Status bench_linear_fp8(BenchCard& card, const LinearLibrary& library,
                        const cuda::DeviceBuffer& pool, const RowSink& sink) {
  if (!engine::check_fp8(card.info(), library.lt.version())) return {};
  TANDEM_CUDA_TRY(cuda::prepare_fp8_rows());
  TANDEM_TRY(bench_rows(card, pool, sink));
  constexpr double kFlops = 2.0 * 8192 * 8192 * 8192;
  double ceiling = 0;
  for (const bool fast : {true, false}) {
    TANDEM_ASSIGN(auto wide, open_wide(card, library, fast));
    TANDEM_ASSIGN(ceiling, fp8_ceiling(card, std::move(wide)));
    sink(flops_row(card, fast ? "linear fp8, fast sums" : "linear fp8, cuBLASLt",
                   "8192 x 8192 x 8192", kFlops / ceiling, kFlops, 0));
  }
  TANDEM_ASSIGN(auto wide, open_wide(card, library));
  for (const Projection& p : kProjections)
    if (p.out != kVocab) TANDEM_TRY(bench_product(card, p, pool, wide, ceiling, sink));
  return bench_layer(card, library, pool, ceiling, sink);
}

}  // namespace tandem::bench
