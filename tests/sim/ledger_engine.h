#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/engine.h"
#include "common/node/step_executor.h"

namespace tandem::sim {

// A stand-in for the model whose every token depends on every byte of KV that it should depend on.
// A row's "KV" is its token id and position, written where the real kernels write; the next token
// is a hash of what is read back through the block table, of the seed and of the position. A page
// that was lost, overwritten, sent twice, sent for another request or freed too early changes the
// answer.
class LedgerEngine {
 public:
  LedgerEngine(uint32_t vocab, const engine::KvPages& pages) : vocab_(vocab), pages_(pages) {}

  [[nodiscard]] Result<std::vector<engine::SequenceOutput>> step(
      std::span<const engine::SequenceInput> sequences, const engine::LayerHook& hook);

  // Asked before each step; what it returns is the step's result after `fault_layers` layers.
  std::function<std::optional<Error>(std::span<const engine::SequenceInput>)> fault;
  uint32_t fault_layers = 0;

  // Positions read back that held something else than the sequence's own token.
  [[nodiscard]] uint64_t mismatches() const { return mismatches_; }
  [[nodiscard]] uint64_t steps() const { return steps_; }

 private:
  void write(const engine::SequenceInput& input, uint32_t layer);
  [[nodiscard]] std::vector<TokenId> read(const engine::SequenceInput& input, uint32_t layer);
  [[nodiscard]] std::byte* cell(const engine::SequenceInput& input, uint32_t layer,
                                uint32_t position, bool open_page) const;

  uint32_t vocab_;
  engine::KvPages pages_;
  uint64_t mismatches_ = 0;
  uint64_t steps_ = 0;
};

// The token that LedgerEngine draws after `tokens`.
[[nodiscard]] TokenId ledger_token(std::span<const TokenId> tokens, uint64_t seed, uint32_t vocab);

struct LedgerRequest {
  std::vector<TokenId> prompt;
  uint32_t max_new_tokens = 0;
  uint32_t min_new_tokens = 0;
  std::vector<TokenId> stop_tokens;
  uint64_t seed = 0;
};
// The answer of a single node that does nothing but this request.
[[nodiscard]] std::vector<TokenId> ledger_answer(const LedgerRequest& request, uint32_t vocab,
                                                 uint32_t max_context);

}  // namespace tandem::sim
