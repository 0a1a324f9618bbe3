#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/kv/layout.h"
#include "kernels/cpu/dispatch.h"

namespace tandem::bench {

struct Options {
  std::string model;   // empty: operations only
  bool dummy = false;  // random weights of the model's shapes: only its config.json is read
  uint32_t threads = 2;
  std::vector<int> cpus;
  DType weights = DType::kBf16;
  kv::KvFormat format = kv::KvFormat::kBf16;
  cpu::CpuIsa isa = cpu::CpuIsa::kReference;
  uint32_t prefill = 512;
  uint32_t decode = 64;
  uint32_t context = 128;  // positions before the decoded ones
  uint32_t rounds = 5;
};

// Whole steps of a real model.
[[nodiscard]] Status bench_model(const Options& options, const Clock& clock);
// Single operations with the shapes of SmolLM2-135M.
[[nodiscard]] Status bench_ops(const Options& options, const Clock& clock);

}  // namespace tandem::bench
