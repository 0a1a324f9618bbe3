#pragma once

#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/sampling.h"
#include "kernels/cuda/sample_row.h"

namespace tandem::engine {

// Whether sampling looks at the tokens so far, which must then lie on the device.
[[nodiscard]] bool needs_history(const SamplingParams& params);

// Writes what the rows of a step ask for into memory that is then uploaded (pinned; owned by the
// caller). Entry i of the batch is entry i of the results. Device thread.
class SampleBatch {
 public:
  SampleBatch(uint32_t vocab, uint32_t top_capacity, std::span<cuda::SampleRow> rows,
              std::span<cuda::SampleBias> biases);

  void clear();

  // Draws a token from logits row `source`. `slot`: where its history lies, cuda::kNoHistory if
  // !needs_history(params). kResourceExhausted, with nothing added, when rows or biases are full:
  // launch what there is, then go on.
  [[nodiscard]] Status add(uint32_t source, const SamplingParams& params,
                           const TokenHistory& history, uint32_t slot);
  // The log-probability of `token`, and the `top` best.
  [[nodiscard]] Status add_score(uint32_t source, TokenId token, int32_t top);
  // Makes the batch `rows` long with rows that do nothing: the bucket of a recorded graph.
  void pad(uint32_t rows);

  [[nodiscard]] std::span<const cuda::SampleRow> rows() const { return rows_.first(row_count_); }
  [[nodiscard]] std::span<const cuda::SampleBias> biases() const {
    return biases_.first(bias_count_);
  }
  // Of an entry's alternatives, how many the kernel writes.
  [[nodiscard]] uint32_t top_count(int32_t asked) const;

 private:
  [[nodiscard]] Status room(size_t biases, int32_t top) const;
  void add_biases(const SamplingParams& params, cuda::SampleRow& row);

  uint32_t vocab_;
  uint32_t top_capacity_;
  std::span<cuda::SampleRow> rows_;
  std::span<cuda::SampleBias> biases_;
  size_t row_count_ = 0;
  size_t bias_count_ = 0;
};

}  // namespace tandem::engine
