#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/ops.h"
#include "common/engine/sampling.h"

namespace tandem::model {
class Checkpoint;
struct ModelConfig;
}  // namespace tandem::model

namespace tandem::engine {

class ForwardModel;

// What a step returns for a sequence.
enum class StepOutput : uint8_t {
  kNone,        // a prefill chunk that is not the last
  kSample,      // sample one token after the last row
  kSampleRows,  // sample one after every row: verifies guesses of the tokens to come
  kScoreRows,   // log-probability of each row's *next* token (prompt scoring), and sample if
                // `sampling` is set
  kLogits,      // raw logits of every row (tandem generate --logits, eval)
};

// One sequence's part of a step; spans stay valid until step() returns.
struct SequenceInput {
  std::span<const TokenId> tokens;  // new rows, at positions start ..
  uint32_t start = 0;
  std::span<const BlockId> blocks;  // covers start + tokens.size() positions
  uint32_t tail = 0;                // tail slot, for layouts that need one
  StepOutput output = StepOutput::kSample;
  const SamplingParams* sampling = nullptr;  // for kSample and kSampleRows
  // Whole sequence known so far, the new rows included, of which each is sampled behind those up to
  // it; `prompt_tokens` bounds the penalties.
  TokenHistory history;
  // kScoreRows: the token after the last row, if known (else the last row is not scored).
  std::optional<TokenId> next_token;
  int32_t score_top = 0;
};

struct SequenceOutput {
  std::optional<SampledToken> token;
  std::vector<SampledToken> tokens;  // kSampleRows: one per row
  std::vector<SampledToken> scores;  // kScoreRows: one per scored row
  std::vector<float> logits;         // kLogits: [rows, vocab]
};

struct EngineOptions {
  uint32_t max_rows = 512;   // rows of the largest step; activations are planned for it
  uint32_t max_context = 0;  // positions; 0: the model's
};

// A loaded model that runs steps. Owned and called by one device thread. Never allocates KV:
// callers own blocks and guarantee that no two steps write the same block at once.
class Engine {
 public:
  // Loads weights through `ops`, which must outlive the engine.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> create(const model::Checkpoint& checkpoint,
                                                              Ops& ops,
                                                              const EngineOptions& options);
  ~Engine();

  // One forward pass over a packed ragged batch (total rows <= max_rows), then sampling. Outputs
  // are in the order of `sequences`. A sequence's company changes no bit of its result on CPUs, and
  // roundings on a card (ADR 0007). After kDeviceLost no later step can succeed: end the process.
  [[nodiscard]] Result<std::vector<SequenceOutput>> step(std::span<const SequenceInput> sequences,
                                                         const KvPages& kv,
                                                         const LayerHook& hook = {});

  // Optional, once, before the first step: warms the engine for steps on `kv` in which up to
  // `sequences` decode together.
  [[nodiscard]] Status prepare(const KvPages& kv, uint32_t sequences);

  [[nodiscard]] const model::ModelConfig& config() const;
  [[nodiscard]] uint32_t max_rows() const;

 private:
  explicit Engine(std::unique_ptr<ForwardModel> model);
  std::unique_ptr<ForwardModel> model_;
};

}  // namespace tandem::engine
