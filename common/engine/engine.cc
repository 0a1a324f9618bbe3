#include "common/engine/engine.h"

#include <algorithm>
#include <string>

#include "common/engine/forward_model.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {
namespace {

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

bool draws(const SequenceInput& s) {
  switch (s.output) {
    case StepOutput::kSample:
    case StepOutput::kSampleRows:
      return true;
    case StepOutput::kScoreRows:
      return s.sampling != nullptr;
    case StepOutput::kNone:
    case StepOutput::kLogits:
      break;
  }
  return false;
}

Status check_output(const SequenceInput& s, size_t index, uint64_t end, uint32_t vocab) {
  const bool samples = draws(s);
  if (samples && s.sampling == nullptr)
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

// Which sequence a RowOutput belongs to.
struct Wanted {
  std::vector<RowOutput> rows;
  std::vector<uint32_t> sequence;
};

uint32_t first_wanted(StepOutput output, uint32_t rows) {
  switch (output) {
    case StepOutput::kNone:
      break;
    case StepOutput::kSample:
      return rows - 1;
    case StepOutput::kSampleRows:
    case StepOutput::kScoreRows:
    case StepOutput::kLogits:
      return 0;
  }
  return rows;
}

// The history as the first `rows` rows of a sequence make it: all but the first are guesses.
TokenHistory history_up_to(const SequenceInput& s, size_t rows) {
  const auto tokens = s.history.tokens.first(s.start + rows);
  return {tokens, std::min(s.history.prompt_tokens, tokens.size()), s.history.sequence,
          s.start + 1};
}

// Sizes the outputs' logits, which the rows point into.
Wanted wanted_rows(std::span<const SequenceInput> sequences, const Packed& packed, size_t vocab,
                   std::span<SequenceOutput> outputs) {
  Wanted out;
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    const SequenceInput& s = sequences[i];
    const SequenceView& view = packed.views[i];
    if (s.output == StepOutput::kLogits) outputs[i].logits.resize(view.rows * vocab);
    for (uint32_t r = first_wanted(s.output, view.rows); r < view.rows; ++r) {
      const bool last = r + 1 == view.rows;
      RowOutput row;
      row.row = view.first_row + r;
      if (s.output == StepOutput::kSampleRows) {
        row.sampling = s.sampling;
        row.history = history_up_to(s, r + 1);
      } else if (last && draws(s)) {
        row.sampling = s.sampling;
        row.history = s.history;
      }
      if (s.output == StepOutput::kScoreRows) {
        row.scored = last ? s.next_token : std::optional(s.tokens[r + 1]);
        row.score_top = s.score_top;
      }
      if (s.output == StepOutput::kLogits) row.logits = outputs[i].logits.data() + r * vocab;
      out.rows.push_back(row);
      out.sequence.push_back(i);
    }
  }
  return out;
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

Status Engine::prepare(const KvPages& kv, uint32_t sequences) {
  TANDEM_TRY(check_pages(config(), kv));
  return model_->prepare(kv, std::min(sequences, max_rows()));
}

Result<std::vector<SequenceOutput>> Engine::step(std::span<const SequenceInput> sequences,
                                                 const KvPages& kv, const LayerHook& hook) {
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
  std::vector<SequenceOutput> outputs(sequences.size());
  const Wanted wanted = wanted_rows(sequences, packed, config().vocab, outputs);
  std::vector<RowResult> results(wanted.rows.size());
  StepRequest request;
  request.view = {packed.tokens, packed.positions, packed.views};
  request.kv = kv;
  request.outputs = wanted.rows;
  request.hook = hook ? &hook : nullptr;
  TANDEM_TRY(model_->run(request, results));
  for (size_t i = 0; i < results.size(); ++i) {
    SequenceOutput& out = outputs[wanted.sequence[i]];
    if (results[i].token) {
      if (sequences[wanted.sequence[i]].output == StepOutput::kSampleRows)
        out.tokens.push_back(std::move(*results[i].token));
      else
        out.token = std::move(results[i].token);
    }
    if (results[i].score) out.scores.push_back(std::move(*results[i].score));
  }
  return outputs;
}

}  // namespace tandem::engine
