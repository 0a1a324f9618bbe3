#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/engine/engine.h"
#include "common/engine/ops.h"
#include "common/engine/rope.h"
#include "common/model/config.h"

namespace tandem::engine {

// The model's graph, written once over Ops: every architecture of common/model/config.h is this one
// sequence with parts left out. Device thread only; `ops` must outlive it.
class ForwardModel {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ForwardModel>> create(
      const model::Checkpoint& checkpoint, Ops& ops, const EngineOptions& options);

  // Runs a validated step of at most max_rows() rows.
  [[nodiscard]] Status run(const StepRequest& request, std::span<RowResult> results);
  [[nodiscard]] Status prepare(const KvPages& kv, uint32_t sequences);

  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  [[nodiscard]] uint32_t max_rows() const { return max_rows_; }
  [[nodiscard]] uint32_t context() const { return context_; }

 private:
  struct Layer {
    std::unique_ptr<VectorWeight> input_norm;
    std::unique_ptr<LinearWeight> qkv;
    std::unique_ptr<VectorWeight> q_norm;  // null without per-head norms
    std::unique_ptr<VectorWeight> k_norm;
    std::unique_ptr<LinearWeight> output;
    std::unique_ptr<VectorWeight> mlp_norm;
    std::unique_ptr<LinearWeight> gate_up;  // dense layers
    std::unique_ptr<LinearWeight> down;
    std::unique_ptr<MoeWeight> moe;  // mixture layers
  };
  class Loader;

  ForwardModel(const model::ModelConfig& config, Ops& ops, const EngineOptions& options);
  [[nodiscard]] Status allocate();
  void run_layers(const StepView& step, const KvPages& kv);
  void run_attention(const StepView& step, uint32_t index, const KvPages& kv,
                     const RopeTable& rope);
  void run_mlp(uint32_t rows, const Layer& layer);

  model::ModelConfig config_;
  Ops& ops_;
  uint32_t max_rows_;
  uint32_t context_;
  RopeCache rope_;
  MoeShape moe_shape_;

  StepBody body_;  // run_layers()

  std::unique_ptr<EmbeddingWeight> embedding_;
  std::unique_ptr<LinearWeight> head_;
  std::unique_ptr<VectorWeight> final_norm_;
  std::vector<Layer> layers_;

  Activation x_;         // [max_rows, hidden]
  Activation qkv_;       // [max_rows, (heads + 2 kv_heads) * head_dim]
  Activation attended_;  // [max_rows, heads * head_dim]
  Activation inner_;     // [max_rows, intermediate]
};

}  // namespace tandem::engine
