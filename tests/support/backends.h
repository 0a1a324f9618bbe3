#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/engine/ops.h"
#include "common/kv/layout.h"
#include "common/model/config.h"

namespace tandem::testing {

// An Ops that the typed suites of tests/unit/engine run on. Each binary links one file that defines
// backends(): the CPU's in tests/unit/engine, the card's in tests/gpu.
struct Backend {
  struct Limits {
    uint32_t max_rows = 0;
    uint32_t sequences = 0;
    uint32_t positions = 0;  // of each
    kv::KvFormat format = kv::KvFormat::kF32;
    uint32_t verify_rows = 1;  // rows of a sequence for which steps are recorded
    bool fp8_weights = false;  // projections in float8, where a backend has that
  };
  std::string name;
  std::function<std::unique_ptr<engine::Ops>(DType weights, const model::ModelConfig& model,
                                             const Limits& limits)>
      create;
  std::vector<DType> types;
  std::vector<kv::KvFormat> formats;
  bool has_fp8 = false;  // Limits::fp8_weights
  bool fast = false;     // runs the real model's whole answers in seconds
  bool slow = false;     // plain loops: takes minutes for the real model
  // 0: a row's result is the same bits however a prompt is cut into chunks and whatever else is in
  // a step. Else how far logits may be apart (relative L2) when only that cut differs.
  double chunk_tolerance = 0;
  // Rows of sequences that decode get the same bits in every step of at most so many.
  uint32_t same_bits_rows = std::numeric_limits<uint32_t>::max();
  // A single prompt's logits may miss the tolerance by this factor, all prompts of a model together
  // may not. For activations in bf16: rounding nothing but normed rows (and the weights) already
  // puts single prompts of these random models at 1.3 times the tolerance, and rounding nothing but
  // the weights at 0.98 times.
  double single_prompt_slack = 1;
};

// Those that this machine can run.
[[nodiscard]] std::vector<Backend> backends();

}  // namespace tandem::testing
