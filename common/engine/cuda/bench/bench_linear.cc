#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "common/engine/cuda/bench/bench_linear.h"
#include "common/engine/cuda/linear.h"
#include "common/engine/cuda/linear_wide.h"
#include "kernels/cuda/bench_streams.h"
#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/linear_small.h"

namespace tandem::bench {

std::string shape_of(const Projection& p, uint32_t rows) {
  return std::string(p.name) + " " + std::to_string(rows) + " x " + std::to_string(p.in) + " x " +
         std::to_string(p.out);
}

Result<LinearLibrary> open_library(const KernelBenchOptions& options) {
  LinearLibrary library;
  TANDEM_ASSIGN(library.lt, cuda::CublasLt::create(options.libraries));
  TANDEM_ASSIGN(library.workspace, cuda::DeviceBuffer::create(engine::WideLinear::kWorkspaceBytes));
  return library;
}

Result<engine::WideLinear> open_wide(const BenchCard& card, const LinearLibrary& library,
                                     bool fast_accumulation) {
  return engine::WideLinear::create({.lt = &library.lt,
                                     .workspace = library.workspace.data(),
                                     .workspace_bytes = engine::WideLinear::kWorkspaceBytes,
                                     .gpu = card.info().name,
                                     .cache_path = {},
                                     .fast_accumulation = fast_accumulation});
}

namespace {

Status measure_product(BenchCard& card, const KernelBenchOptions& options) {
  auto library = open_library(options);
  if (!library) {
    card.ceilings.cublas_missing = library.error().to_string();
    return {};
  }
  TANDEM_ASSIGN(auto wide, open_wide(card, *library));
  constexpr int64_t kSide = 8192;
  TANDEM_ASSIGN(const auto weights, card.normal_bf16(kSide * kSide, 0.02F));
  TANDEM_ASSIGN(const auto x, card.normal_bf16(kSide * kSide, 1));
  TANDEM_ASSIGN(const auto out, card.zeros(kSide * kSide * sizeof(Bf16)));
  engine::WideTask task;
  task.weight = weights.as<Bf16>();
  task.in = task.out = kSide;
  task.rows = kSide;
  task.x = x.as<Bf16>();
  task.result = out.data();
  TANDEM_TRY(wide.prepare({&task, 1}, task.rows, card.stream()));
  TANDEM_ASSIGN(const double s,
                card.seconds([&](uint32_t) { return wide.run(task, card.stream().get()); }, 1));
  card.ceilings.bf16_flops = 2.0 * kSide * kSide * kSide / s;
  return {};
}

// One projection at 1 .. 48 rows through the kernels that stream weights.
Status bench_small(BenchCard& card, const Projection& p, const cuda::DeviceBuffer& pool,
                   const RowSink& sink) {
  const size_t weights = static_cast<size_t>(p.in * p.out);
  const uint32_t variants = static_cast<uint32_t>(std::max<size_t>(
      1, std::min<size_t>(card.variants_for(2 * weights), pool.bytes() / (2 * weights))));
  TANDEM_ASSIGN(const auto x, card.normal_bf16(static_cast<size_t>(cuda::kBatchRows * p.in), 1));
  TANDEM_ASSIGN(const auto residual,
                card.normal_float(static_cast<size_t>(cuda::kBatchRows * p.in), 1));
  TANDEM_ASSIGN(const auto norm, card.normal_float(static_cast<size_t>(p.in), 1));
  TANDEM_ASSIGN(const auto scratch,
                card.zeros(static_cast<size_t>(cuda::kBatchRows * p.in) * sizeof(Bf16)));
  TANDEM_ASSIGN(const auto out,
                card.zeros(static_cast<size_t>(cuda::kBatchRows * p.out) * sizeof(float)));
  TANDEM_CUDA_TRY(cuda::prepare_small_linear());
  TANDEM_CUDA_TRY(cuda::prepare_batch_linear());
  cuda::SmallDevice small;
  small.multiprocessors = static_cast<uint32_t>(card.info().multiprocessors);
  cuda::BatchDevice batch;
  batch.multiprocessors = small.multiprocessors;
  for (const uint32_t rows : {1u, 4u, 8u, 16u, 32u, 48u}) {
    cuda::SmallLinear task;
    task.in = p.in;
    task.out = p.out;
    task.rows = rows;
    if (p.normed) {
      task.residual = residual.as<float>();
      task.norm = norm.as<float>();
      task.eps = 1e-6F;
      task.scratch = scratch.as<Bf16>();
    } else {
      task.x = x.as<Bf16>();
    }
    task.epilogue = p.epilogue;
    task.result = out.data();
    const bool few = rows <= engine::own_rows(false).small;
    TANDEM_ASSIGN(
        const double s,
        card.seconds(
            [&](uint32_t v) -> Status {
              task.weight = pool.as<Bf16>() + v * weights;
              const cudaStream_t stream = card.stream().get();
              TANDEM_CUDA_TRY(
                  few ? cuda::linear_small(task, cuda::plan_small_linear(task, small), stream)
                      : cuda::linear_batch(task, cuda::plan_batch_linear(task, batch), stream));
              return {};
            },
            variants));
    const double bytes = 2.0 * static_cast<double>(weights);
    sink(bytes_row(card, "linear bf16", shape_of(p, rows), s, bytes, 0));
  }
  return {};
}

Status bench_large(BenchCard& card, const Projection& p, const cuda::DeviceBuffer& pool,
                   engine::WideLinear& wide, const RowSink& sink) {
  constexpr uint32_t kMost = 2048;
  TANDEM_ASSIGN(const auto x, card.normal_bf16(static_cast<size_t>(kMost * p.in), 1));
  TANDEM_ASSIGN(const auto out, card.zeros(static_cast<size_t>(kMost * p.out) * sizeof(float)));
  engine::WideTask task;
  task.weight = pool.as<Bf16>();
  task.in = p.in;
  task.out = p.out;
  task.rows = kMost;
  task.x = x.as<Bf16>();
  task.output = p.epilogue == cuda::SmallEpilogue::kAdd ? engine::WideOutput::kAdd
                                                        : engine::WideOutput::kStore;
  task.result = out.data();
  TANDEM_TRY(wide.prepare({&task, 1}, kMost, card.stream()));
  for (const uint32_t rows : {64u, 128u, 512u, kMost}) {
    task.rows = rows;
    TANDEM_ASSIGN(const double s,
                  card.seconds([&](uint32_t) { return wide.run(task, card.stream().get()); }, 1));
    const double flops = 2.0 * rows * static_cast<double>(p.in * p.out);
    sink(flops_row(card, "linear bf16, cuBLASLt", shape_of(p, rows), s, flops, 0));
  }
  return {};
}

}  // namespace

Status measure_ceilings(BenchCard& card, const KernelBenchOptions& options) {
  card.ceilings.device = card.info().name;
  TANDEM_ASSIGN(const auto versions, cuda::cuda_versions());
  card.ceilings.driver = cuda::version_text(versions.driver);
  constexpr size_t kBytes = size_t{4} << 30;
  TANDEM_ASSIGN(const auto from, card.normal_bf16(kBytes / sizeof(Bf16), 1));
  TANDEM_ASSIGN(const auto sink, card.zeros(16));
  TANDEM_ASSIGN(const double read,
                card.seconds(
                    [&](uint32_t) -> Status {
                      TANDEM_CUDA_TRY(cuda::read_stream(from.data(), kBytes, sink.as<uint32_t>(),
                                                        card.stream().get()));
                      return {};
                    },
                    1));
  card.ceilings.read_bytes = static_cast<double>(kBytes) / read;
  // The faster of the driver's copy and a plain kernel: neither wins on every card.
  std::byte* const half = from.data() + kBytes / 2;
  TANDEM_ASSIGN(const double driver, card.seconds(
                                         [&](uint32_t) {
                                           return cuda::copy_on_device(half, from.data(),
                                                                       kBytes / 2, card.stream());
                                         },
                                         1));
  TANDEM_ASSIGN(const double kernel, card.seconds(
                                         [&](uint32_t) -> Status {
                                           TANDEM_CUDA_TRY(cuda::copy_stream(
                                               half, from.data(), kBytes / 2, card.stream().get()));
                                           return {};
                                         },
                                         1));
  const double copy = std::min(driver, kernel);
  card.ceilings.copy_bytes = static_cast<double>(kBytes) / copy;
  return measure_product(card, options);
}

Status bench_linear(BenchCard& card, const KernelBenchOptions& options, const RowSink& sink) {
  TANDEM_ASSIGN(const auto pool, card.normal_bf16(static_cast<size_t>(kHidden * kVocab), 0.02F));
  for (const Projection& p : kProjections) TANDEM_TRY(bench_small(card, p, pool, sink));
  auto library = open_library(options);
  if (!library) return {};  // measure_ceilings() has said why
  TANDEM_ASSIGN(auto wide, open_wide(card, *library));
  for (const Projection& p : kProjections)
    if (p.out != kVocab) TANDEM_TRY(bench_large(card, p, pool, wide, sink));
  return bench_linear_fp8(card, *library, pool, sink);
}

Result<double> product_seconds(const KernelBenchOptions& options, const LayerShape& shape,
                               uint32_t rows, bool fp8) {
  TANDEM_ASSIGN(auto card, BenchCard::open(options));
  TANDEM_ASSIGN(const auto library, open_library(options));
  TANDEM_ASSIGN(auto wide, open_wide(card, library));
  struct Size {
    int64_t in, out;
    engine::WideOutput output;
  };
  const Size sizes[] = {{shape.hidden, shape.qkv, engine::WideOutput::kStore},
                        {shape.attended, shape.hidden, engine::WideOutput::kAdd},
                        {shape.hidden, 2 * shape.inner, engine::WideOutput::kStore},
                        {shape.inner, shape.hidden, engine::WideOutput::kAdd}};
  int64_t longest = 0;
  size_t layer = 0;
  for (const Size& s : sizes) {
    longest = std::max({longest, s.in, s.out});
    layer += static_cast<size_t>(s.in * s.out);
  }
  TANDEM_ASSIGN(const auto weights, card.normal_bf16(shape.layers * layer, 0.02F));
  TANDEM_ASSIGN(const auto x, card.normal_bf16(static_cast<size_t>(rows * longest), 1));
  Fp8Matrix weights_fp8, x_fp8;
  if (fp8) {
    // Scales of some rows of this length stand for those of the projections' rows.
    const auto vectors = static_cast<int64_t>(shape.layers * layer) / shape.hidden;
    TANDEM_ASSIGN(weights_fp8, quantized(card, weights.as<Bf16>(), vectors, shape.hidden));
    TANDEM_ASSIGN(x_fp8, quantized(card, x.as<Bf16>(), rows, longest));
  }
  TANDEM_ASSIGN(const auto out, card.zeros(static_cast<size_t>(rows * longest) * sizeof(float)));
  std::vector<engine::WideTask> tasks;
  size_t at = 0;
  for (uint32_t l = 0; l < shape.layers; ++l)
    for (const Size& s : sizes) {
      engine::WideTask task;
      task.weight = weights.as<Bf16>() + at;
      task.x = x.as<Bf16>();
      if (fp8) {
        task.weight = weights_fp8.bits.as<uint8_t>() + at;
        task.weight_scales = weights_fp8.scales.as<float>();
        task.x = x_fp8.bits.as<uint8_t>();
        task.x_scales = x_fp8.scales.as<float>();
      }
      at += static_cast<size_t>(s.in * s.out);
      task.in = s.in;
      task.out = s.out;
      task.rows = rows;
      task.output = s.output;
      task.result = out.data();
      tasks.push_back(task);
    }
  TANDEM_TRY(wide.prepare(std::span(tasks).first(std::size(sizes)), rows, card.stream()));
  return card.seconds(
      [&](uint32_t) -> Status {
        for (const engine::WideTask& task : tasks) TANDEM_TRY(wide.run(task, card.stream().get()));
        return {};
      },
      1);
}

}  // namespace tandem::bench
