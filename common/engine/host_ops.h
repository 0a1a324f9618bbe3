#pragma once

#include <memory>
#include <optional>
#include <span>

#include "common/engine/ops.h"

namespace tandem::engine {

// Ops whose memory is the host's and whose functions return when done, so that a step is its body
// and nothing else, and sampling is that of sampling.h. The thread of the ops only.
class HostOps : public Ops {
 public:
  // out[rows.size(), V] for the given rows of x: final norm and head.
  virtual void logits(std::span<const uint32_t> rows, Activation x, const VectorWeight& norm,
                      float eps, const LinearWeight& head, float* out) = 0;

  Result<Activation> allocate_residual(int64_t rows, int64_t cols) final {
    return allocate(rows, cols);
  }
  Result<std::unique_ptr<LinearWeight>> load_gate_up(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) final {
    return load_linear(parts, biases);
  }
  Status load_rope(const std::function<RopeTable()>&) final { return {}; }
  Result<std::optional<uint64_t>> kv_memory_limit(const kv::KvLayout&) final {
    return std::nullopt;
  }
  Result<std::unique_ptr<kv::PageMemory>> create_kv_memory(const kv::KvLayout& layout,
                                                           uint32_t blocks, uint32_t tails) final;
  Status prepare(const KvPages& kv, uint32_t sequences, const StepBody& body) final;
  Status run_step(const StepRequest& request, const StepBody& body,
                  std::span<RowResult> results) final;
  void layer_written(uint32_t layer) final;
  void outputs(Activation x, const VectorWeight& norm, float eps, const LinearWeight& head) final;

 private:
  const StepRequest* request_ = nullptr;  // of the step that runs
  std::span<RowResult> results_;
};

}  // namespace tandem::engine
