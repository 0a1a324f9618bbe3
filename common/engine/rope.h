#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/ops.h"
#include "common/model/config.h"

namespace tandem::engine {

// Angle per position of each rotated pair, and the factor on cos and sin.
struct RopeFrequencies {
  std::vector<float> inverse;  // [head_dim/2]
  float scale = 1;
};

// Sources of the formulas, all as huggingface/transformers' modeling_rope_utils.py evaluates them,
// in float32 where it does:
//   default  theta^(-2i/d): Su et al. 2021, RoFormer, arXiv:2104.09864
//   linear   divided by factor: Chen et al. 2023, arXiv:2306.15595
//   dynamic  the default: theta only changes past the original length, where the context ends
//   llama3   by wavelength, smooth in between: Llama 3.1 reference code
//   yarn     ramp between both by rotations, cos and sin scaled: Peng et al. 2023, arXiv:2309.00071
// frequency_divisors (GGUF) divide the outcome.
[[nodiscard]] RopeFrequencies rope_frequencies(const model::RopeConfig& rope, uint32_t head_dim,
                                               uint32_t max_positions);

// cos/sin rows for positions 0 .. n-1, computed when first needed: a long context costs nothing
// until it is used. Device thread only.
class RopeCache {
 public:
  RopeCache(RopeFrequencies frequencies, uint32_t context)
      : frequencies_(std::move(frequencies)), context_(context) {}

  // A table that covers `positions` (<= context); valid until the next call.
  [[nodiscard]] RopeTable table(uint32_t positions);

 private:
  RopeFrequencies frequencies_;
  uint32_t context_;
  uint32_t filled_ = 0;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace tandem::engine
