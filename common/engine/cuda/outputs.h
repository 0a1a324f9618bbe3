#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/memory.h"
#include "common/engine/cuda/arena.h"
#include "common/engine/cuda/linear.h"
#include "common/engine/cuda/sampling/history_slots.h"
#include "common/engine/cuda/sampling/sample_batch.h"
#include "common/engine/cuda/stages.h"
#include "common/engine/cuda/weights.h"
#include "common/engine/ops.h"
#include "kernels/cuda/sampling.h"

namespace tandem::engine {

// Sizes of what outputs take, in bytes; offsets within the parts. Pure.
struct OutputLayout {
  OutputLayout() = default;
  OutputLayout(uint32_t vocab, uint32_t batch, uint32_t max_context);

  size_t logits_bytes = 0;  // [batch, vocab] float32
  size_t biases_at = 0;     // in the description, behind its rows
  size_t description_bytes = 0;
  size_t top_at = 0;  // in the results, behind tokens and log-probabilities
  size_t results_bytes = 0;
  uint32_t history_stride = 0;  // tokens
  size_t history_bytes = 0;
  // Of all but the logits, each part a multiple of 256.
  [[nodiscard]] size_t workspace_bytes() const;
};

// The end of a step: logits of the wanted rows, and tokens and scores made from them on the device.
// What the sampling kernel cannot do (a vocabulary past its limit, more alternatives than planned)
// is sampled on the host from the same logits, with the same semantics. Device thread only.
class CudaOutputs {
 public:
  CudaOutputs(DeviceArena& arena, const cuda::Stream& stream, Stages& stages)
      : arena_(arena), stream_(stream), stages_(stages) {}

  // `batch`: rows whose logits exist at once. `linear` outlives this.
  [[nodiscard]] Status prepare(LinearRunner& linear, uint32_t vocab, uint32_t batch,
                               uint32_t max_context);
  [[nodiscard]] uint32_t batch() const { return batch_; }

  // A step whose outputs fit one batch: describes them and uploads the description, padded to
  // `padded` rows. Then record or replay enqueue(padded), then collect().
  [[nodiscard]] Status describe(std::span<const RowOutput> outputs, uint32_t padded);
  // Logits and sampling of `rows` outputs, whose rows of x stand in `index` (device).
  [[nodiscard]] Status enqueue(uint32_t rows, const uint32_t* index, Activation x,
                               const CudaVector& norm, float eps, const CudaLinear& head);
  // Waits for the stream and hands out what was asked for.
  [[nodiscard]] Status collect(std::span<const RowOutput> outputs, std::span<RowResult> results);

  // The device's copy of token histories may be wrong: after a failed step.
  void forget();

 private:
  // What becomes of one output.
  struct Plan {
    bool on_host = false;
    int32_t token = -1;  // entry of the batch that draws, -1: none
    int32_t score = -1;  // entry that scores
  };
  [[nodiscard]] Result<Plan> plan(const RowOutput& output, uint32_t source);
  // Tokens that are staged and not yet on their way: entries of all slots' histories from `at` on.
  struct Unsent {
    size_t at = 0;
    size_t staged = 0;
    size_t count = 0;
  };
  [[nodiscard]] Status stage_history(const HistoryUpload& upload);
  [[nodiscard]] Status send_history();
  [[nodiscard]] Status emit_on_host(const RowOutput& output, const float* logits,
                                    RowResult& result) const;
  [[nodiscard]] SampledToken read_entry(int32_t entry, TokenId id, int32_t top) const;

  DeviceArena& arena_;
  const cuda::Stream& stream_;
  Stages& stages_;
  LinearRunner* linear_ = nullptr;
  uint32_t vocab_ = 0;
  uint32_t batch_ = 0;
  cuda::SamplingPlan sampling_;
  cuda::DeviceSampling device_;
  float* logits_ = nullptr;         // [batch, vocab]
  cuda::PinnedBuffer description_;  // rows, then biases; its device copy lies alike
  std::byte* device_description_ = nullptr;
  size_t description_bytes_ = 0;
  size_t biases_at_ = 0;
  cuda::PinnedBuffer results_;  // tokens, logprobs, alternatives; the device's lie alike
  std::byte* device_results_ = nullptr;
  size_t top_at_ = 0;
  cuda::PinnedBuffer history_staging_;
  size_t history_staged_ = 0;  // tokens of this step
  Unsent unsent_;
  std::unique_ptr<SampleBatch> rows_;
  std::unique_ptr<HistorySlots> histories_;
  std::vector<Plan> plans_;
  bool wants_top_ = false;
};

}  // namespace tandem::engine
