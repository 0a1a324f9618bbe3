#include "tools/local/local_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/config/units.h"
#include "common/engine/cpu/cpu_ops.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/engine.h"
#include "common/engine/ops.h"
#include "common/kv/block_pool.h"
#include "common/model/config.h"

namespace tandem::local {
namespace {

// Rows of one prefill step. With logits wanted, fewer: each row then brings the whole vocabulary.
constexpr uint32_t kChunkRows = 512;
constexpr uint32_t kLogitRows = 64;

Result<DType> weight_type(const LocalOptions& options, const model::ModelConfig& config,
                          const DeviceChoice& device) {
  if (device.cuda && options.dtype == "float32") {
    return fail(ErrorCode::kInvalidArgument,
                "the CUDA engine keeps weights in bf16; use auto or bf16, or --device cpu",
                "--dtype");
  }
  if (device.cuda) return DType::kBf16;
  if (options.dtype == "float32") return DType::kF32;
  if (options.dtype == "bf16") return DType::kBf16;
  if (options.dtype == "auto") return config.dtype == DType::kF32 ? DType::kF32 : DType::kBf16;
  return fail(ErrorCode::kInvalidArgument,
              "\"" + options.dtype + "\" is no weight type; use auto, float32 or bf16", "--dtype");
}

Result<kv::KvFormat> kv_format(const LocalOptions& options, DType weights) {
  if (options.kv == "auto") {
    return weights == DType::kF32 ? kv::KvFormat::kF32 : kv::KvFormat::kBf16;
  }
  auto format = kv::parse_kv_format(options.kv);
  if (!format) format.error().param = "--kv";
  return format;
}

Result<std::unique_ptr<engine::Ops>> create_ops(const LocalOptions& options, DType dtype,
                                                const DeviceChoice& device,
                                                const model::ModelConfig& config,
                                                uint32_t positions, engine::StepProfile& profile) {
  if (device.cuda) {
    engine::CudaOptions cuda;
    cuda.device = static_cast<int>(device.index);
    cuda.max_rows = kChunkRows;
    cuda.max_context = positions;
    cuda.max_sequences = 1;
    if (options.quantization == "fp8") cuda.quantization = engine::Quantization::kFp8;
    if (options.profile) cuda.profile = &profile;
    cuda.cache_dir = options.cache_dir;
    return engine::create_cuda_ops(cuda, config);
  }
  if (options.quantization != "none") {
    return fail(ErrorCode::kInvalidArgument,
                "quantization fp8 is for GPUs: add --device cuda, or use none", "--quantization");
  }
  if (options.profile) {
    return fail(ErrorCode::kInvalidArgument, "only a GPU's ops are measured: add --device cuda",
                "--profile");
  }
  engine::CpuOptions cpu;
  cpu.threads = options.threads;
  cpu.weights = dtype;
  if (!options.isa.empty()) {
    TANDEM_ASSIGN(cpu.isa, cpu::parse_cpu_isa(options.isa));
  }
  TANDEM_ASSIGN(std::unique_ptr<engine::Ops> ops, engine::create_cpu_ops(cpu));
  return ops;
}

// Weights that hold no numbers make logits that hold none, of which sampling could only take the
// first. `token` has its log-probability.
Status check_drawn(const engine::SampledToken& token, size_t position) {
  if (token.logprob > engine::kMinLogprob) return {};
  return fail(ErrorCode::kCorruptData,
              "the logits after position " + std::to_string(position) +
                  " are not numbers: the weights are damaged, or too large for their type here");
}

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

struct LocalModel::State {
  explicit State(const Clock& c) : clock(c) {}
  const Clock& clock;
  std::unique_ptr<model::Checkpoint> checkpoint;
  engine::StepProfile profile;  // ops write to it
  std::unique_ptr<engine::Ops> ops;
  std::unique_ptr<engine::Engine> engine;  // before ops
  std::unique_ptr<kv::BlockPool> pool;
  kv::BlockTable table;  // before pool
  DType dtype = DType::kBf16;
  uint32_t positions = 0;

  [[nodiscard]] engine::KvPages pages() const {
    return {.layout = pool->layout(),
            .pages = pool->pages(),
            .blocks = pool->capacity(),
            .tail = pool->tail_pages(),
            .tails = pool->tail_capacity()};
  }

  // A sequence of `tokens` new rows behind `start` earlier ones.
  [[nodiscard]] engine::SequenceInput input(std::span<const TokenId> all, uint32_t start,
                                            uint32_t rows) const {
    engine::SequenceInput in;
    in.tokens = all.subspan(start, rows);
    in.start = start;
    const size_t blocks = (start + rows + kv::kBlockTokens - 1) / kv::kBlockTokens;
    in.blocks = table.ids().first(blocks);
    in.tail = table.tail ? table.tail.slot() : 0;
    in.history = {.tokens = all.first(start + rows), .prompt_tokens = all.size()};
    return in;
  }

  Result<engine::SequenceOutput> step(const engine::SequenceInput& in) {
    TANDEM_ASSIGN(auto outputs, engine->step({&in, 1}, pages()));
    return std::move(outputs.front());
  }

  Status check_fits(size_t tokens) const {
    if (tokens <= positions) return {};
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(tokens) + " tokens do not fit into " + std::to_string(positions));
  }

  // A step that samples.
  Result<engine::SampledToken> draw(const engine::SequenceInput& in) {
    TANDEM_ASSIGN(engine::SequenceOutput out, step(in));
    if (!out.token) return fail(ErrorCode::kInternal, "the engine drew no token");
    return *std::move(out.token);
  }

  Result<TokenId> prefill(const GenerateJob& job);
};

LocalModel::LocalModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
LocalModel::~LocalModel() = default;

Result<std::unique_ptr<model::Checkpoint>> open_checkpoint(const LocalOptions& options) {
  auto format = model::parse_load_format(options.load_format);
  if (!format) {
    format.error().param = "--load-format";
    return fail(std::move(format).error());
  }
  return model::Checkpoint::open(options.model, {.format = *format});
}

Result<std::unique_ptr<LocalModel>> LocalModel::create(
    const LocalOptions& options, std::unique_ptr<model::Checkpoint> checkpoint, uint32_t positions,
    const Clock& clock) {
  const model::ModelConfig& config = checkpoint->config();
  auto device = parse_device(options.device);
  if (!device) {
    device.error().param = "--device";
    return fail(std::move(device).error());
  }
  TANDEM_ASSIGN(const DType dtype, weight_type(options, config, *device));
  TANDEM_ASSIGN(const kv::KvFormat format, kv_format(options, dtype));
  const kv::KvLayout layout{.layers = config.layers,
                            .kv_heads = config.kv_heads,
                            .head_dim = config.head_dim,
                            .format = format};

  auto state = std::make_unique<State>(clock);
  state->dtype = dtype;
  state->positions = positions;
  TANDEM_ASSIGN(state->ops, create_ops(options, dtype, *device, config, positions, state->profile));
  TANDEM_ASSIGN(state->engine,
                engine::Engine::create(*checkpoint, *state->ops,
                                       {.max_rows = kChunkRows, .max_context = positions}));
  checkpoint->release_pages();
  state->checkpoint = std::move(checkpoint);

  kv::BlockPoolOptions pool;
  pool.layout = layout;
  pool.blocks = (positions + kv::kBlockTokens - 1) / kv::kBlockTokens;
  pool.tails = layout.needs_tail() ? 1 : 0;
  TANDEM_ASSIGN(auto memory, state->ops->create_kv_memory(layout, pool.blocks, pool.tails));
  TANDEM_ASSIGN(state->pool, kv::BlockPool::create(pool, std::move(memory)));
  TANDEM_TRY(state->engine->prepare(state->pages(), 1));
  state->profile.clear();
  TANDEM_ASSIGN(auto blocks, state->pool->allocate(pool.blocks));
  state->table.append(std::move(blocks));
  if (pool.tails > 0) {
    TANDEM_ASSIGN(state->table.tail, state->pool->allocate_tail());
  }
  return std::unique_ptr<LocalModel>(new LocalModel(std::move(state)));
}

// Runs the prompt in chunks; returns the first token.
Result<TokenId> LocalModel::State::prefill(const GenerateJob& job) {
  if (job.prompt.empty()) return fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  const uint32_t total = static_cast<uint32_t>(job.prompt.size());
  const uint32_t chunk = job.on_logits ? kLogitRows : kChunkRows;
  engine::SamplingParams sampling = job.sampling;
  sampling.logprobs = std::max(sampling.logprobs, 0);  // for check_drawn
  engine::SampledToken first;
  for (uint32_t start = 0; start < total; start += chunk) {
    const uint32_t rows = std::min(chunk, total - start);
    const bool last = start + rows == total;
    engine::SequenceInput in = input(job.prompt, start, rows);
    if (job.on_logits) {
      in.output = engine::StepOutput::kLogits;
    } else {
      in.output = last ? engine::StepOutput::kSample : engine::StepOutput::kNone;
      in.sampling = &sampling;
    }
    if (!job.on_logits && last) {
      TANDEM_ASSIGN(first, draw(in));
      break;
    }
    TANDEM_ASSIGN(engine::SequenceOutput out, step(in));
    if (!job.on_logits) continue;
    TANDEM_TRY(job.on_logits(start, out.logits));
    if (!last) continue;
    const size_t vocab = out.logits.size() / rows;
    const std::span<float> row = std::span(out.logits).last(vocab);
    first = engine::sample(row, sampling, in.history);
  }
  TANDEM_TRY(check_drawn(first, total - 1));
  return first.id;
}

Result<GenerateOutcome> LocalModel::generate(const GenerateJob& job) {
  TANDEM_TRY(state_->check_fits(job.prompt.size() + job.max_new_tokens));
  GenerateOutcome outcome;
  const TimePoint begin = state_->clock.now();
  std::vector<TokenId> sequence(job.prompt.begin(), job.prompt.end());
  sequence.reserve(job.prompt.size() + job.max_new_tokens);
  TANDEM_ASSIGN(TokenId token, state_->prefill(job));
  const TimePoint first = state_->clock.now();
  outcome.prefill_seconds = to_seconds(first - begin);

  while (job.max_new_tokens > 0) {
    outcome.ids.push_back(token);
    sequence.push_back(token);
    outcome.stopped = contains(job.stop_tokens, token);
    if (job.on_token && !job.on_token(token)) break;
    if (outcome.stopped || outcome.ids.size() >= job.max_new_tokens) break;
    const uint32_t start = static_cast<uint32_t>(sequence.size()) - 1;
    engine::SequenceInput in = state_->input(sequence, start, 1);
    in.history.prompt_tokens = job.prompt.size();
    in.output = engine::StepOutput::kSample;
    in.sampling = &job.sampling;
    TANDEM_ASSIGN(const engine::SampledToken drawn, state_->draw(in));
    token = drawn.id;
  }
  outcome.decode_seconds = to_seconds(state_->clock.now() - first);
  return outcome;
}

Result<ScoreOutcome> LocalModel::score(std::span<const TokenId> tokens) {
  TANDEM_TRY(state_->check_fits(tokens.size()));
  ScoreOutcome outcome;
  const uint32_t total = static_cast<uint32_t>(tokens.size());
  for (uint32_t start = 0; start < total; start += kChunkRows) {
    const uint32_t rows = std::min(kChunkRows, total - start);
    engine::SequenceInput in = state_->input(tokens, start, rows);
    in.output = engine::StepOutput::kScoreRows;
    if (start + rows < total) in.next_token = tokens[start + rows];
    TANDEM_ASSIGN(const engine::SequenceOutput out, state_->step(in));
    for (size_t i = 0; i < out.scores.size(); ++i) {
      TANDEM_TRY(check_drawn(out.scores[i], start + i));
      outcome.nll -= double{out.scores[i].logprob};
    }
    outcome.predicted += static_cast<uint32_t>(out.scores.size());
  }
  const kv::KvLayout& layout = state_->pool->layout();
  const uint64_t pages = (total + kv::kBlockTokens - 1) / kv::kBlockTokens;
  outcome.raw_bytes = pages * layout.bf16_block_bytes();
  outcome.wire_bytes = pages * layout.block_bytes();
  if (const uint64_t rows = total % kv::kBlockTokens; layout.needs_tail() && rows != 0) {
    // Of the open page the used rows are sent, in tail format.
    outcome.wire_bytes -= layout.block_bytes();
    outcome.wire_bytes += layout.tail_layout().block_bytes() / kv::kBlockTokens * rows;
  }
  return outcome;
}

const kv::KvLayout& LocalModel::layout() const { return state_->pool->layout(); }
std::string_view LocalModel::engine_name() const { return state_->ops->name(); }
const engine::StepProfile& LocalModel::profile() const { return state_->profile; }
std::string_view LocalModel::dtype_name() const { return to_string(state_->dtype); }

}  // namespace tandem::local
