#include "common/engine/engine.h"

#include <algorithm>
#include <string>

#include "common/engine/forward_model.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {
namespace {

// Logits are made for at most this many rows at once, and in at most this much memory.
constexpr size_t kLogitRows = 64;
constexpr size_t kLogitBytes = 32u << 20;

tl::unexpected<Error> bad(size_t index, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument,
              "sequence " + std::to_string(index) + " of the step: " + what);
}

Status check_pages(const model::ModelConfig& config, const KvPages& kv) {
  const kv::KvLayout& layout = kv.layout;
  if (layout.layers != config.layers || layout.kv_heads != config.kv_heads ||
      layout.head_dim != config.head_dim)
    return fail(ErrorCode::kMismatch,
                "the KV pool is laid out for another model: " + layout.describe() +
                    "; the model has " + config.describe());
  if (kv.pages == nullptr || kv.blocks == 0)
    return fail(ErrorCode::kInvalidArgument, "the step has no KV pool");
  if (layout.needs_tail() && (kv.tail == nullptr || kv.tails == 0))
    return fail(ErrorCode::kInvalidArgument,
                "this KV format needs tail pages, and the step has none");
  return {};
}

Status check_output(const SequenceInput& s, size_t index, uint64_t end, uint32_t vocab) {
  const bool samples = s.output == StepOutput::kSample ||
                       (s.output == StepOutput::kScoreRows && s.sampling != nullptr);
  if (s.output == StepOutput::kSample && s.sampling == nullptr)
    return bad(index, "wants a token but says not how to sample");
  if (samples && s.history.tokens.size() != end)
    return bad(index, "its history has " + std::to_string(s.history.tokens.size()) +
                          " tokens, its rows end at " + std::to_string(end));
  if (samples && s.history.prompt_tokens > s.history.tokens.size())
    return bad(index, "its prompt is longer than its history");
  if (s.next_token && (*s.next_token < 0 || static_cast<uint32_t>(*s.next_token) >= vocab))
    return bad(index, "next token " + std::to_string(*s.next_token) + " is outside the vocabulary");
  return {};
}

Status check_sequence(const SequenceInput& s, size_t index, const ForwardModel& model,
                      const KvPages& kv) {
  const uint32_t vocab = model.config().vocab;
  if (s.tokens.empty()) return bad(index, "has no tokens");
  const uint64_t end = uint64_t{s.start} + s.tokens.size();
  if (end > model.context())
    return bad(index, "ends at position " + std::to_string(end) + ", past the context of " +
                          std::to_string(model.context()));
  for (const TokenId t : s.tokens)
    if (t < 0 || static_cast<uint32_t>(t) >= vocab)
      return bad(index, "token id " + std::to_string(t) + " is outside the vocabulary of " +
                            std::to_string(vocab));
  const size_t needed = (end + kv::kBlockTokens - 1) / kv::kBlockTokens;
  if (s.blocks.size() < needed)
    return bad(index, "has " + std::to_string(s.blocks.size()) + " KV blocks and needs " +
                          std::to_string(needed));
  for (const BlockId b : s.blocks.first(needed))
    if (b.value >= kv.blocks)
      return bad(index, "KV block " + std::to_string(b.value) + " is outside the pool of " +
                            std::to_string(kv.blocks));
  if (kv.layout.needs_tail() && s.tail >= kv.tails)
    return bad(index, "tail slot " + std::to_string(s.tail) + " is outside the pool of " +
                          std::to_string(kv.tails));
  return check_output(s, index, end, vocab);
}

// The packed form of a step's sequences.
struct Packed {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  std::vector<SequenceView> views;
};

Packed pack(std::span<const SequenceInput> sequences) {
  Packed p;
  p.views.reserve(sequences.size());
  for (const SequenceInput& s : sequences) {
    const auto rows = static_cast<uint32_t>(s.tokens.size());
    const size_t blocks = (s.start + rows + kv::kBlockTokens - 1) / kv::kBlockTokens;
    p.views.push_back(
        {static_cast<uint32_t>(p.tokens.size()), rows, s.start, s.blocks.first(blocks), s.tail});
    p.tokens.insert(p.tokens.end(), s.tokens.begin(), s.tokens.end());
    for (uint32_t i = 0; i < rows; ++i) p.positions.push_back(s.start + i);
  }
  return p;
}

// One row whose logits are wanted.
struct WantedRow {
  uint32_t row = 0;  // in the packed batch
  uint32_t sequence = 0;
  uint32_t offset = 0;  // within its sequence
};

std::vector<WantedRow> wanted_rows(std::span<const SequenceInput> sequences, const Packed& packed) {
  std::vector<WantedRow> out;
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    const SequenceView& view = packed.views[i];
    uint32_t first = view.rows;  // kNone
    switch (sequences[i].output) {
      case StepOutput::kNone:
        break;
      case StepOutput::kSample:
        first = view.rows - 1;
        break;
      case StepOutput::kScoreRows:
      case StepOutput::kLogits:
        first = 0;
        break;
    }
    for (uint32_t r = first; r < view.rows; ++r) out.push_back({view.first_row + r, i, r});
  }
  return out;
}

void emit(const SequenceInput& s, uint32_t offset, std::span<float> logits, SequenceOutput& out) {
  const bool last = offset + 1 == s.tokens.size();
  if (s.output == StepOutput::kLogits)
    std::copy(logits.begin(), logits.end(),
              out.logits.begin() + static_cast<std::ptrdiff_t>(offset * logits.size()));
  if (s.output == StepOutput::kScoreRows) {
    const std::optional<TokenId> next = last ? s.next_token : std::optional(s.tokens[offset + 1]);
    if (next) out.scores.push_back(score(logits, *next, s.score_top));
  }
  const bool samples = s.output == StepOutput::kSample ||
                       (s.output == StepOutput::kScoreRows && s.sampling != nullptr);
  if (samples && last) out.token = sample(logits, *s.sampling, s.history);
}

}  // namespace

Engine::Engine(std::unique_ptr<ForwardModel> model) : model_(std::move(model)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const model::Checkpoint& checkpoint, Ops& ops,
                                               const EngineOptions& options) {
  TANDEM_ASSIGN(auto model, ForwardModel::create(checkpoint, ops, options));
  return std::unique_ptr<Engine>(new Engine(std::move(model)));
}

const model::ModelConfig& Engine::config() const { return model_->config(); }
uint32_t Engine::max_rows() const { return model_->max_rows(); }

Result<std::vector<SequenceOutput>> Engine::step(std::span<const SequenceInput> sequences,
                                                 const KvPages& kv, const LayerHook& hook) {
  const uint32_t vocab = config().vocab;
  TANDEM_TRY(check_pages(config(), kv));
  if (sequences.empty()) return fail(ErrorCode::kInvalidArgument, "the step has no sequences");
  uint64_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    TANDEM_TRY(check_sequence(sequences[i], i, *model_, kv));
    rows += sequences[i].tokens.size();
  }
  if (rows > max_rows())
    return fail(ErrorCode::kInvalidArgument, "the step has " + std::to_string(rows) +
                                                 " rows, the engine takes " +
                                                 std::to_string(max_rows()));

  const Packed packed = pack(sequences);
  model_->run({packed.tokens, packed.positions, packed.views}, kv, hook);

  std::vector<SequenceOutput> outputs(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i)
    if (sequences[i].output == StepOutput::kLogits)
      outputs[i].logits.resize(sequences[i].tokens.size() * vocab);
  const std::vector<WantedRow> wanted = wanted_rows(sequences, packed);
  const size_t chunk = std::clamp<size_t>(kLogitBytes / (vocab * sizeof(float)), 1, kLogitRows);
  std::vector<float> scratch(std::min(chunk, wanted.size()) * vocab);
  std::vector<uint32_t> row_ids;
  for (size_t begin = 0; begin < wanted.size(); begin += chunk) {
    const size_t n = std::min(chunk, wanted.size() - begin);
    row_ids.clear();
    for (size_t i = 0; i < n; ++i) row_ids.push_back(wanted[begin + i].row);
    model_->logits(row_ids, scratch.data());
    for (size_t i = 0; i < n; ++i) {
      const WantedRow& w = wanted[begin + i];
      emit(sequences[w.sequence], w.offset, std::span(scratch).subspan(i * vocab, vocab),
           outputs[w.sequence]);
    }
  }
  return outputs;
}

}  // namespace tandem::engine
