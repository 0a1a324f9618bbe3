#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/model/checkpoint.h"
#include "tests/support/backends.h"

namespace tandem::testing {

// One engine with KV pages of its own, for tests that run whole prompts. Blocks of sequence i are
// scattered over the pool, so that nothing passes because pages happen to be in order.
class EngineHarness {
 public:
  struct Options {
    kv::KvFormat format = kv::KvFormat::kF32;
    uint32_t max_rows = 64;  // small on purpose: prompts take several chunks
    uint32_t sequences = 1;
    uint32_t positions = 512;  // of each sequence
    uint32_t verify_rows = 1;
    bool fp8_weights = false;
  };
  [[nodiscard]] static Result<std::unique_ptr<EngineHarness>> create(
      const model::Checkpoint& checkpoint, std::unique_ptr<engine::Ops> ops,
      const Options& options);

  // [tokens, vocab], computed in chunks of at most `chunk` rows (0: max_rows).
  [[nodiscard]] Result<std::vector<float>> logits(std::span<const TokenId> tokens,
                                                  uint32_t chunk = 0, uint32_t sequence = 0);
  // Prompt in chunks, then one token a step; stops after `count` tokens or at the model's eos.
  [[nodiscard]] Result<std::vector<TokenId>> generate(std::span<const TokenId> prompt, size_t count,
                                                      const engine::SamplingParams& sampling,
                                                      bool stop_at_eos = false,
                                                      uint32_t sequence = 0);

  [[nodiscard]] engine::Engine& engine() { return *engine_; }
  [[nodiscard]] const engine::KvPages& pages() const { return pages_; }
  [[nodiscard]] kv::PageMemory& memory() { return *memory_; }
  [[nodiscard]] std::span<const BlockId> blocks(uint32_t sequence) const {
    return blocks_[sequence];
  }

 private:
  EngineHarness() = default;

  std::unique_ptr<engine::Ops> ops_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<kv::PageMemory> memory_;
  engine::KvPages pages_;
  std::vector<std::vector<BlockId>> blocks_;
};

// What a backend has to be made for.
[[nodiscard]] inline Backend::Limits limits_of(const EngineHarness::Options& options) {
  return {options.max_rows, options.sequences,   options.positions,
          options.format,   options.verify_rows, options.fp8_weights};
}

}  // namespace tandem::testing
