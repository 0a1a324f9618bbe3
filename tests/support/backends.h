#pragma once

#include <functional>
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
  };
  std::string name;
  std::function<std::unique_ptr<engine::Ops>(DType weights, const model::ModelConfig& model,
                                             const Limits& limits)>
      create;
  std::vector<DType> types;
  std::vector<kv::KvFormat> formats;
  bool fast = false;  // runs the real model's whole answers in seconds
  bool slow = false;  // plain loops: takes minutes for the real model
  // How far logits may be apart (relative L2) when only the cut of a prompt into chunks differs; 0:
  // they are the same bits.
  double chunk_tolerance = 0;
};

// Those that this machine can run.
[[nodiscard]] std::vector<Backend> backends();

}  // namespace tandem::testing
