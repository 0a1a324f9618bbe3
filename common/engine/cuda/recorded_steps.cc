#include "common/engine/cuda/recorded_steps.h"

#include <algorithm>

#include "common/engine/cuda/buckets.h"

namespace tandem::engine {

DummyStep::DummyStep(const DummyShape& shape, std::span<const BlockId> blocks) {
  tokens.assign(shape.rows, TokenId{0});
  greedy.temperature = 0;
  for (uint32_t row = 0; row < shape.real;) {
    const uint32_t own = std::min(shape.each, shape.real - row);
    sequences.push_back({row, own, 0, blocks, 0});
    for (uint32_t p = 0; p < own; ++p) positions.push_back(p);
    row += own;
    RowOutput output;
    output.row = row - 1;
    output.sampling = &greedy;
    output.history = {std::span(tokens).first(own), own};
    outputs.push_back(output);
  }
  positions.resize(shape.rows, 0);
}

RecordedSteps::RecordedSteps(const Limits& limits)
    : limits_(limits),
      decoding_(decode_buckets(limits.decoding)),
      verifying_(verify_buckets(limits.few.each > 1 ? limits.few.together : 0)) {
  // Of a very small engine.
  std::erase_if(verifying_, [&](uint32_t rows) { return rows > limits.rows; });
}

DummyShape RecordedSteps::verify_shape(uint32_t rows) const {
  return {rows, std::min(rows, limits_.few.together), limits_.few.each};
}

uint32_t RecordedSteps::sequences(uint32_t rows) const { return std::min(rows, limits_.sequences); }

std::optional<RecordedSteps::Choice> RecordedSteps::choose(const StepView& view) const {
  const uint32_t rows = view.rows();
  const bool verifies = view.sequences.size() != rows;
  const std::vector<uint32_t>& buckets = verifies ? verifying_ : decoding_;
  const size_t index = bucket_of(buckets, rows);
  if (index >= buckets.size()) return std::nullopt;
  // What decode attention does not take together, or the recorded step has no slots for.
  if (verifies &&
      (rows > limits_.few.together || view.sequences.size() > sequences(buckets[index])))
    return std::nullopt;
  if (std::ranges::any_of(view.sequences,
                          [&](const SequenceView& s) { return s.rows > limits_.few.each; }))
    return std::nullopt;
  return Choice{verifies, index};
}

}  // namespace tandem::engine
