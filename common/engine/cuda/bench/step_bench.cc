#include "common/engine/cuda/bench/step_bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "common/base/clock.h"
#include "common/engine/cuda/step_profile.h"
#include "common/engine/engine.h"
#include "common/kv/page_memory.h"
#include "common/model/checkpoint.h"
#include "common/model/config.h"

namespace tandem::bench {
namespace {

constexpr uint32_t kWarmSteps = 8;
constexpr uint32_t kTimedSteps = 48;
constexpr size_t kPrefillRuns = 5;

// The published shape of Qwen2-7B (Qwen/Qwen2-7B config.json).
std::string qwen2_7b(uint32_t layers) {
  return R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
 "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
 "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16", "num_hidden_layers": )" +
         std::to_string(layers) + "}";
}

// A folder that goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = std::filesystem::temp_directory_path() / ("tandem-bench-" + std::to_string(getpid()));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] Status write(const std::string& name, const std::string& text) const {
    std::error_code error;
    std::filesystem::create_directories(path_, error);
    std::ofstream out(path_ / name);
    out << text;
    out.flush();
    if (!out) return fail(ErrorCode::kUnavailable, "cannot write " + (path_ / name).string());
    return {};
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

Result<std::unique_ptr<model::Checkpoint>> open_model(const StepBenchOptions& options,
                                                      const TemporaryFolder& folder) {
  std::filesystem::path path = options.model;
  if (options.model.empty()) {
    TANDEM_TRY(folder.write("config.json", qwen2_7b(options.layers == 0 ? 28 : options.layers)));
    path = folder.path();
  }
  return model::Checkpoint::open(path, {.format = model::LoadFormat::kDummy});
}

class StepBench {
 public:
  [[nodiscard]] Status load(const StepBenchOptions& options, const model::Checkpoint& checkpoint);
  // Seconds of one step in which `batch` sequences of `context` tokens decode.
  [[nodiscard]] Result<double> decode(uint32_t batch, uint32_t context);
  // Of one in which a sequence of `context` tokens has `rows` more, each sampled.
  [[nodiscard]] Result<double> verify(uint32_t rows, uint32_t context);
  [[nodiscard]] Result<double> prefill(uint32_t rows);

  // What a decode step must read.
  [[nodiscard]] double step_bytes(uint32_t batch, uint32_t context) const {
    const model::ModelConfig& c = engine_->config();
    const double kv =
        static_cast<double>(pages_.layout.block_bytes()) / kv::kBlockTokens * context * batch;
    const double table =
        c.tied_head ? 0 : 2.0 * static_cast<double>(c.vocab) * static_cast<double>(c.hidden);
    return static_cast<double>(ops_->weight_bytes()) - table + kv;
  }
  [[nodiscard]] double prefill_flops(uint32_t rows) const {
    const model::ModelConfig& c = engine_->config();
    const double layer =
        static_cast<double>(c.hidden) * (c.heads + 2.0 * c.kv_heads + c.heads) * c.head_dim +
        3.0 * static_cast<double>(c.hidden) * static_cast<double>(c.intermediate);
    const double pairs = static_cast<double>(rows) * (rows + 1) / 2;
    return c.layers * (2.0 * rows * layer + 4.0 * pairs * c.head_dim * c.heads) +
           2.0 * static_cast<double>(c.hidden) * static_cast<double>(c.vocab);
  }
  // Of the timed steps of the last decode() or prefill().
  [[nodiscard]] const engine::StepProfile& profile() const { return profile_; }

 private:
  [[nodiscard]] Status fill(uint32_t sequence, uint32_t context);
  [[nodiscard]] engine::SequenceInput input(uint32_t sequence, uint32_t start,
                                            uint32_t rows) const {
    engine::SequenceInput in;
    in.tokens = std::span(tokens_[sequence]).subspan(start, rows);
    in.start = start;
    in.blocks = blocks_[sequence];
    in.tail = sequence;
    in.output = engine::StepOutput::kSample;
    in.sampling = &greedy_;
    in.history = {std::span(tokens_[sequence]).first(start + rows), start + rows, sequence + 1};
    return in;
  }

  SteadyClock clock_;
  engine::StepProfile profile_;
  std::unique_ptr<engine::Ops> ops_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<kv::PageMemory> memory_;
  engine::KvPages pages_;
  std::vector<std::vector<BlockId>> blocks_;
  std::vector<std::vector<TokenId>> tokens_;
  engine::SamplingParams greedy_;
};

Status StepBench::load(const StepBenchOptions& options, const model::Checkpoint& checkpoint) {
  const model::ModelConfig& config = checkpoint.config();
  const uint32_t sequences = std::max(1u, *std::ranges::max_element(options.batches));
  const uint32_t longest = *std::ranges::max_element(options.prompts);
  constexpr uint32_t kSteps = kWarmSteps + kTimedSteps + 1;
  const uint32_t decoded = options.context + kSteps;
  const uint32_t most = std::max({longest, decoded, options.long_context + kSteps});
  if (most > config.max_positions)
    return fail(ErrorCode::kInvalidArgument,
                "the model ends at position " + std::to_string(config.max_positions));
  engine::CudaOptions cuda;
  cuda.device = options.card.device;
  cuda.libraries = options.card.libraries;
  cuda.max_rows = std::max(longest, 512u);
  cuda.max_context = most;
  cuda.max_sequences = sequences;
  for (const uint32_t rows : options.verified)
    cuda.max_verify_rows = std::max(cuda.max_verify_rows, rows);
  cuda.quantization = options.quantization;
  cuda.cache_dir = options.cache_dir;
  if (options.profile) cuda.profile = &profile_;
  TANDEM_ASSIGN(ops_, engine::create_cuda_ops(cuda, config));
  TANDEM_ASSIGN(engine_,
                engine::Engine::create(checkpoint, *ops_, {cuda.max_rows, cuda.max_context}));
  pages_.layout = {config.layers, config.kv_heads, config.head_dim, options.format};
  const auto blocks_for = [](uint32_t positions) {
    return (positions + kv::kBlockTokens - 1) / kv::kBlockTokens;
  };
  // Sequence 0 also runs the long prompts and the long context.
  std::mt19937 random(1);
  uint32_t next = 0;
  for (uint32_t s = 0; s < sequences; ++s) {
    const uint32_t positions = s == 0 ? most : decoded;
    blocks_.emplace_back();
    for (uint32_t b = 0; b < blocks_for(positions); ++b) blocks_.back().push_back(BlockId{next++});
    tokens_.emplace_back(positions);
    for (TokenId& t : tokens_.back())
      t = static_cast<TokenId>(random() % static_cast<uint32_t>(config.vocab));
  }
  pages_.blocks = next;
  pages_.tails = pages_.layout.needs_tail() ? sequences : 0;
  TANDEM_ASSIGN(memory_, ops_->create_kv_memory(pages_.layout, pages_.blocks, pages_.tails));
  pages_.pages = memory_->pages();
  pages_.tail = memory_->tails();
  greedy_.temperature = 0;
  return engine_->prepare(pages_, sequences);
}

Status StepBench::fill(uint32_t sequence, uint32_t context) {
  for (uint32_t at = 0; at < context; at += engine_->max_rows()) {
    const engine::SequenceInput in =
        input(sequence, at, std::min(engine_->max_rows(), context - at));
    TANDEM_ASSIGN(const auto out, engine_->step({&in, 1}, pages_));
  }
  return {};
}

Result<double> StepBench::decode(uint32_t batch, uint32_t context) {
  for (uint32_t s = 0; s < batch; ++s) TANDEM_TRY(fill(s, context));
  std::vector<double> times;
  for (uint32_t i = 0; i < kWarmSteps + kTimedSteps; ++i) {
    std::vector<engine::SequenceInput> inputs;
    for (uint32_t s = 0; s < batch; ++s) inputs.push_back(input(s, context + i, 1));
    if (i == kWarmSteps) profile_.clear();
    const TimePoint begin = clock_.now();
    TANDEM_ASSIGN(const auto out, engine_->step(inputs, pages_));
    if (i >= kWarmSteps) times.push_back(seconds_between(begin, clock_.now()));
    for (uint32_t s = 0; s < batch; ++s) tokens_[s][context + i + 1] = out[s].token->id;
  }
  return median(times);
}

Result<double> StepBench::verify(uint32_t rows, uint32_t context) {
  TANDEM_TRY(fill(0, context));
  engine::SequenceInput in = input(0, context, rows);
  in.output = engine::StepOutput::kSampleRows;
  std::vector<double> times;
  for (uint32_t i = 0; i < kWarmSteps + kTimedSteps; ++i) {
    if (i == kWarmSteps) profile_.clear();
    const TimePoint begin = clock_.now();
    TANDEM_ASSIGN(const auto out, engine_->step({&in, 1}, pages_));
    if (i >= kWarmSteps) times.push_back(seconds_between(begin, clock_.now()));
  }
  return median(times);
}

Result<double> StepBench::prefill(uint32_t rows) {
  std::vector<double> times;
  const engine::SequenceInput in = input(0, 0, rows);
  for (size_t i = 0; i < kPrefillRuns + 1; ++i) {
    if (i == 1) profile_.clear();
    const TimePoint begin = clock_.now();
    TANDEM_ASSIGN(const auto out, engine_->step({&in, 1}, pages_));
    if (i > 0) times.push_back(seconds_between(begin, clock_.now()));
  }
  return median(times);
}

DeviceRow decode_row(const StepBench& bench, const Ceilings& ceilings, const std::string& kind,
                     uint32_t batch, uint32_t context, double seconds) {
  DeviceRow row;
  row.what = "decode step " + kind;
  row.shape = "batch " + std::to_string(batch) + " at " + std::to_string(context);
  row.seconds = seconds;
  row.rate = bench.step_bytes(batch, context) / seconds * 1e-9;
  row.unit = "GB/s";
  row.ceiling = ceilings.read_bytes * 1e-9;
  row.against = "read stream";
  row.ratio = row.rate / row.ceiling;
  row.target = batch == 1 && context == 1024 && kind == "bf16" ? 0.75 : 0;
  row.note = std::to_string(static_cast<int>(batch / seconds)) + " tokens/s";
  return row;
}

DeviceRow verify_row(const std::string& kind, uint32_t rows, uint32_t context, double seconds,
                     double one) {
  DeviceRow row;
  row.what = "verify step " + kind;
  row.shape = std::to_string(rows) + " rows, batch 1 at " + std::to_string(context);
  row.seconds = seconds;
  row.rate = rows / seconds;
  row.unit = "rows/s";
  row.ceiling = rows / one;
  row.against = "steps of 1 row";
  row.ratio = seconds / one;
  row.at_most = true;
  row.target = rows == 8 && context == 1024 && kind == "bf16" ? 1.25 : 0;
  return row;
}

void report_profile(const StepBench& bench, const Ceilings& ceilings, const std::string& shape,
                    const RowSink& sink) {
  const engine::StepProfile& profile = bench.profile();
  const auto steps = static_cast<double>(std::max<uint64_t>(profile.steps(), 1));
  for (const engine::StepProfile::Stage& stage : profile.stages()) {
    DeviceRow row;
    row.what = stage.name;
    row.shape = shape;
    row.seconds = stage.seconds / steps;
    if (stage.bytes > 0) {
      row.rate = stage.bytes / stage.seconds * 1e-9;
      row.unit = "GB/s";
      row.ceiling = ceilings.read_bytes * 1e-9;
      row.against = "read stream";
      row.ratio = row.rate / row.ceiling;
    }
    const int permille = static_cast<int>(1000 * stage.seconds / profile.seconds() + 0.5);
    row.note = std::to_string(permille / 10) + "." + std::to_string(permille % 10) + " %, " +
               std::to_string(static_cast<int>(static_cast<double>(stage.calls) / steps + 0.5)) +
               " calls, " + std::to_string(static_cast<int>(stage.bytes / steps * 1e-6 + 0.5)) +
               " MB";
    sink(row);
  }
  DeviceRow sum;
  sum.what = "all stages, one after the other";
  sum.shape = shape;
  sum.seconds = profile.seconds() / steps;
  sink(sum);
}

Status profile_steps(const StepBenchOptions& options, StepBench& bench, const Ceilings& ceilings,
                     const RowSink& sink) {
  for (const uint32_t batch : options.batches) {
    TANDEM_ASSIGN([[maybe_unused]] const double s, bench.decode(batch, options.context));
    report_profile(bench, ceilings, "decode " + std::to_string(batch), sink);
  }
  for (const uint32_t rows : options.verified) {
    TANDEM_ASSIGN([[maybe_unused]] const double s, bench.verify(rows, options.context));
    report_profile(bench, ceilings, "verify " + std::to_string(rows), sink);
  }
  for (const uint32_t rows : options.prompts) {
    TANDEM_ASSIGN([[maybe_unused]] const double s, bench.prefill(rows));
    report_profile(bench, ceilings, "prefill " + std::to_string(rows), sink);
  }
  return {};
}

Status decode_rows(const StepBenchOptions& options, StepBench& bench, const Ceilings& ceilings,
                   const std::string& kind, const RowSink& sink) {
  double one = 0;  // of the last step of one sequence
  const auto add = [&](uint32_t batch, uint32_t context) -> Status {
    TANDEM_ASSIGN(const double s, bench.decode(batch, context));
    if (batch == 1) one = s;
    sink(decode_row(bench, ceilings, kind, batch, context, s));
    return {};
  };
  const auto verify = [&](uint32_t context) -> Status {
    for (const uint32_t rows : options.verified) {
      TANDEM_ASSIGN(const double s, bench.verify(rows, context));
      sink(verify_row(kind, rows, context, s, one));
    }
    return {};
  };
  for (const uint32_t batch : options.batches) {
    TANDEM_TRY(add(batch, options.context));
    if (batch == 1) TANDEM_TRY(verify(options.context));
  }
  if (options.long_context == 0) return {};
  TANDEM_TRY(add(1, options.long_context));
  return verify(options.long_context);
}

}  // namespace

Result<Ceilings> bench_steps(const StepBenchOptions& options, const RowSink& sink) {
  if (options.batches.empty() || options.prompts.empty())
    return fail(ErrorCode::kInvalidArgument, "name at least one batch and one prompt length");
  const TemporaryFolder folder;
  TANDEM_ASSIGN(const auto checkpoint, open_model(options, folder));
  const model::ModelConfig& config = checkpoint->config();
  TANDEM_ASSIGN(const Ceilings ceilings, bench_ceilings(options.card));
  const LayerShape shape{.layers = config.layers,
                         .hidden = config.hidden,
                         .qkv = (config.heads + 2 * config.kv_heads) * config.head_dim,
                         .attended = config.heads * config.head_dim,
                         .inner = config.intermediate};
  if (options.profile) {
    StepBench bench;
    TANDEM_TRY(bench.load(options, *checkpoint));
    TANDEM_TRY(profile_steps(options, bench, ceilings, sink));
    return ceilings;
  }
  const bool fp8 = options.quantization == engine::Quantization::kFp8;
  const std::string kind = fp8 ? "fp8" : "bf16";
  std::vector<double> products;
  for (const uint32_t rows : options.prompts) {
    TANDEM_ASSIGN(const double s, product_seconds(options.card, shape, rows, fp8));
    products.push_back(s);
  }
  StepBench bench;
  TANDEM_TRY(bench.load(options, *checkpoint));
  TANDEM_TRY(decode_rows(options, bench, ceilings, kind, sink));
  for (size_t i = 0; i < options.prompts.size(); ++i) {
    const uint32_t rows = options.prompts[i];
    TANDEM_ASSIGN(const double s, bench.prefill(rows));
    DeviceRow row;
    row.what = "prefill " + kind;
    row.shape = std::to_string(rows) + " tokens";
    row.seconds = s;
    const double flops = bench.prefill_flops(rows) * 1e-12;
    row.rate = flops / s;
    row.unit = "TFLOP/s";
    row.ceiling = flops / products[i];
    row.against = "GEMMs alone";
    row.ratio = products[i] / s;
    row.target = rows == 2048 && !fp8 ? 0.85 : 0;
    row.note = std::to_string(static_cast<int>(rows / s)) + " tokens/s";
    sink(row);
  }
  return ceilings;
}

}  // namespace tandem::bench
