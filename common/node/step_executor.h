#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/engine/engine.h"

namespace tandem::node {

// One engine step. The spans inside `sequences` point into memory that the submitter keeps
// unchanged until the step's result is back.
struct StepJob {
  uint64_t id = 0;
  std::vector<engine::SequenceInput> sequences;
  engine::LayerHook hook;  // runs on the device thread
};

struct StepResult {
  uint64_t id = 0;
  Result<std::vector<engine::SequenceOutput>> outputs;
  TimePoint started;
  TimePoint finished;

  // Why a step of so many sequences brought nothing, if it did not.
  [[nodiscard]] std::optional<Error> failure(size_t sequences) const {
    if (!outputs) return outputs.error();
    if (outputs->size() == sequences) return std::nullopt;
    return make_error(ErrorCode::kInternal, "the engine lost a sequence's output");
  }
};

// Where steps run: a device thread in a node, inside the event loop of a simulation.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Takes one step; at most one may be open. Its result arrives through the owner's sink, never
  // from inside this call. False (and no result) when a step is open or the executor has stopped.
  [[nodiscard]] virtual bool submit(StepJob job) = 0;
};

// What runs a step: Engine::step bound to its KV pages.
using StepFunction = std::function<Result<std::vector<engine::SequenceOutput>>(
    std::span<const engine::SequenceInput>, const engine::LayerHook&)>;

}  // namespace tandem::node
