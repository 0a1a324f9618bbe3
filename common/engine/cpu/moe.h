#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/cpu/linear.h"
#include "common/engine/cpu/weights.h"
#include "common/engine/ops.h"

namespace tandem::engine {

// Mixture of experts: routes each row to its experts, runs every expert once over all its rows, and
// adds the results up per row in the order of expert numbers, so that a row's sum does not depend
// on which other rows were routed. Device thread only; keeps scratch between calls.
class MoeRunner {
 public:
  MoeRunner(ThreadPool& pool, const cpu::KernelTable& kernels, LinearRunner& linear)
      : pool_(pool), kernels_(kernels), linear_(linear) {}
  void run(int64_t rows, const LinearInput& in, const MoeShape& shape, const CpuMoe& weight,
           Activation x);

 private:
  // The `slot`-th smallest of a row's expert numbers.
  struct Choice {
    uint32_t expert = 0;
    float weight = 0;
  };
  void route(int64_t rows, const MoeShape& shape);
  void choose(const float* logits, const MoeShape& shape, Choice* choices) const;

  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
  LinearRunner& linear_;
  std::vector<float> logits_;      // [rows, experts]
  std::vector<Choice> choices_;    // [rows, experts_per_token]
  std::vector<uint32_t> offsets_;  // [experts + 1] into members_
  std::vector<uint32_t> members_;  // rows, grouped by expert
  std::vector<uint32_t> places_;   // [rows, experts_per_token]: index into members_
  std::vector<float> hidden_;      // [members, intermediate]
  std::vector<float> results_;     // [members, H]
};

}  // namespace tandem::engine
