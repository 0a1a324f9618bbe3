#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/cuda/step_area.h"
#include "common/engine/ops.h"

namespace tandem::engine {

// Sequences of `each` rows, the last one of what is left, until they have `real` rows; the rows up
// to `rows` are padding.
struct DummyShape {
  uint32_t rows = 0;
  uint32_t real = 0;
  uint32_t each = 1;
};

// A step whose contents are there only to have its shape. `blocks` cover a sequence and outlive it.
struct DummyStep {
  DummyStep(const DummyShape& shape, std::span<const BlockId> blocks);
  DummyStep(const DummyStep&) = delete;
  DummyStep& operator=(const DummyStep&) = delete;

  [[nodiscard]] StepView view() const { return {tokens, positions, sequences}; }

  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  std::vector<SequenceView> sequences;
  std::vector<RowOutput> outputs;
  SamplingParams greedy;
};

// The shapes of which an engine records steps, and which of them a step can replay.
class RecordedSteps {
 public:
  struct Limits {
    uint32_t decoding = 0;   // sequences that decode together
    FewRows few;             // as the engine's steps are ordered
    uint32_t sequences = 0;  // most of any step
    uint32_t rows = 0;       // most of a step that verifies
  };
  struct Choice {
    bool verifies = false;
    size_t index = 0;  // of decoding() or verifying()
  };

  RecordedSteps() = default;  // of none
  explicit RecordedSteps(const Limits& limits);

  [[nodiscard]] const std::vector<uint32_t>& decoding() const { return decoding_; }
  [[nodiscard]] const std::vector<uint32_t>& verifying() const { return verifying_; }
  // What is recorded of these many rows.
  [[nodiscard]] static DummyShape decode_shape(uint32_t rows) { return {rows, rows, 1}; }
  // The smallest bucket may have more rows than sequences have together: the rest is padding, since
  // attention would take more rows for a prompt's.
  [[nodiscard]] DummyShape verify_shape(uint32_t rows) const;
  // Sequences for which a recorded step of so many rows has room.
  [[nodiscard]] uint32_t sequences(uint32_t rows) const;

  // By the shape of a step alone; none: it must be enqueued.
  [[nodiscard]] std::optional<Choice> choose(const StepView& view) const;

 private:
  Limits limits_;
  std::vector<uint32_t> decoding_, verifying_;  // rows
};

}  // namespace tandem::engine
