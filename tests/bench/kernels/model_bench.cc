#include <cstdio>
#include <numeric>

#include "common/engine/cpu/cpu_ops.h"
#include "common/engine/engine.h"
#include "common/model/checkpoint.h"
#include "tests/bench/kernels/bench.h"
#include "tests/bench/kernels/ceilings.h"
#include "tests/bench/kernels/report.h"

namespace tandem::bench {
namespace {

// An engine with pages for one sequence.
struct Runner {
  std::unique_ptr<engine::Ops> ops;
  std::unique_ptr<engine::Engine> engine;
  std::vector<std::byte> pages;
  std::vector<std::byte> tails;
  engine::KvPages kv;
  std::vector<BlockId> blocks;
  std::vector<TokenId> history;  // zeros: greedy sampling without penalties does not look

  Status step(std::span<const TokenId> tokens, uint32_t start, bool sample) {
    engine::SamplingParams greedy;
    greedy.temperature = 0;
    engine::SequenceInput input;
    input.tokens = tokens;
    input.start = start;
    const auto end = start + static_cast<uint32_t>(tokens.size());
    input.blocks = std::span(blocks).first((end + 15) / 16);
    input.output = sample ? engine::StepOutput::kSample : engine::StepOutput::kNone;
    input.sampling = &greedy;
    input.history = {std::span(history).first(end), end};
    TANDEM_ASSIGN(const auto out, engine->step({&input, 1}, kv));
    return {};
  }
};

Result<Runner> open(const Options& options, const model::Checkpoint& checkpoint) {
  Runner r;
  engine::CpuOptions cpu_options;
  cpu_options.threads = options.threads;
  cpu_options.cpus = options.cpus;
  cpu_options.weights = options.weights;
  cpu_options.isa = options.isa;
  TANDEM_ASSIGN(r.ops, engine::create_cpu_ops(cpu_options));
  engine::EngineOptions engine_options;
  engine_options.max_rows = options.prefill;
  TANDEM_ASSIGN(r.engine, engine::Engine::create(checkpoint, *r.ops, engine_options));
  const model::ModelConfig& config = r.engine->config();
  const uint32_t positions = std::max(options.prefill, options.context) + options.decode + 16;
  r.kv.layout = {config.layers, config.kv_heads, config.head_dim, options.format};
  r.kv.blocks = (positions + 15) / 16;
  r.kv.tails = 1;
  r.pages.resize(r.kv.layout.block_bytes() * r.kv.blocks);
  r.tails.resize(r.kv.layout.tail_layout().block_bytes());
  r.kv.pages = r.pages.data();
  r.kv.tail = r.tails.data();
  r.history.resize(size_t{r.kv.blocks} * 16);
  for (uint32_t b = 0; b < r.kv.blocks; ++b) r.blocks.push_back(BlockId{b});
  return r;
}

// Multiply-adds of the projections and of causal attention, times two.
double prefill_flops(const model::ModelConfig& c, double tokens) {
  const double q = 1.0 * c.heads * c.head_dim;
  const double kv = 1.0 * c.kv_heads * c.head_dim;
  const double layer = c.hidden * (2 * q + 2 * kv) + 3.0 * c.hidden * c.intermediate;
  const double attention = q * (tokens + 1);  // scores and values over half the square
  return 2 * c.layers * tokens * (layer + attention);
}

}  // namespace

Status bench_model(const Options& options, const Clock& clock) {
  model::CheckpointOptions from;
  if (options.dummy) from.format = model::LoadFormat::kDummy;
  TANDEM_ASSIGN(const auto checkpoint, model::Checkpoint::open(options.model, from));
  const TimePoint begin = clock.now();
  TANDEM_ASSIGN(Runner runner, open(options, *checkpoint));
  const model::ModelConfig& config = runner.engine->config();
  const auto weight_bytes = static_cast<double>(runner.ops->weight_bytes());
  std::printf("\n%s, %s weights (%.1f MB), %u threads, kv %s, loaded in %.2f s\n",
              config.describe().c_str(), std::string(runner.ops->name()).c_str(),
              weight_bytes / 1e6, options.threads, std::string(to_string(options.format)).c_str(),
              to_seconds(clock.now() - begin));
  print_header();
  Ceilings ceilings(options.threads, options.cpus, options.isa, clock);
  std::vector<TokenId> tokens(options.prefill);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>((i * 7919 + 13) % config.vocab);

  std::vector<double> prefill, decode, stream, peak;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    stream.push_back(ceilings.read_stream());
    peak.push_back(options.weights == DType::kBf16 ? ceilings.flops_bf16() : ceilings.flops_f32());
    TimePoint start = clock.now();
    TANDEM_TRY(runner.step(tokens, 0, true));
    prefill.push_back(to_seconds(clock.now() - start));
    for (uint32_t p = static_cast<uint32_t>(tokens.size()); p < options.context;
         p += options.prefill)
      TANDEM_TRY(runner.step(
          std::span(tokens).first(std::min(options.prefill, options.context - p)), p, false));
    TANDEM_TRY(runner.step(std::span(tokens).first(1), options.context, true));  // warm
    for (uint32_t i = 0; i < options.decode; ++i) {
      start = clock.now();
      TANDEM_TRY(runner.step(std::span(tokens).subspan(i % tokens.size(), 1),
                             options.context + i + 1, true));
      decode.push_back(to_seconds(clock.now() - start));
    }
  }
  const double n = options.prefill;
  const double prefill_s = median(prefill);
  print_row({"prefill", std::to_string(options.prefill) + " tokens", prefill_s,
             prefill_flops(config, n) / prefill_s, "GFLOP/s", median(peak),
             std::to_string(static_cast<int>(n / prefill_s)) + " tok/s"});
  const double decode_s = median(decode);
  print_row({"decode", "at " + std::to_string(options.context), decode_s, weight_bytes / decode_s,
             "GB/s", median(stream), std::to_string(static_cast<int>(1 / decode_s)) + " tok/s"});
  return {};
}

}  // namespace tandem::bench
