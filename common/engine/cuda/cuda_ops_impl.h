#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/cuda/cublas_lt.h"
#include "common/cuda/device.h"
#include "common/cuda/graph.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/arena.h"
#include "common/engine/cuda/attention.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/cuda/engine_limits.h"
#include "common/engine/cuda/linear.h"
#include "common/engine/cuda/outputs.h"
#include "common/engine/cuda/recorded_steps.h"
#include "common/engine/cuda/stages.h"
#include "common/engine/cuda/step_area.h"
#include "common/engine/cuda/weights.h"
#include "common/model/config.h"
#include "kernels/cuda/moe.h"

namespace tandem::engine {

// A step is run in one of two ways. Where every sequence decodes one token, or verifies as many as
// was asked for, the recorded graph of the smallest bucket that holds it is replayed; else the body
// is called and enqueues. Both read the same descriptions, which run_step() uploads first. Device
// thread only.
class CudaOps final : public Ops {
 public:
  CudaOps(const CudaOptions& options, const model::ModelConfig& model, cuda::Device device,
          cuda::Stream stream, cuda::CublasLt lt);
  ~CudaOps() override;

  // Plans all memory and takes what the engine itself needs in one piece; options.kv_layout is set.
  Status reserve_memory();

  Result<std::unique_ptr<LinearWeight>> load_linear(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) override;
  Result<std::unique_ptr<LinearWeight>> load_gate_up(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) override;
  Result<std::unique_ptr<VectorWeight>> load_vector(const model::HostTensor& values) override;
  Result<std::unique_ptr<EmbeddingWeight>> load_embedding(const model::HostTensor& table) override;
  Result<std::unique_ptr<LinearWeight>> load_tied_head(const EmbeddingWeight& table) override;
  Result<std::unique_ptr<MoeWeight>> load_moe(
      const MoeShape& shape, const model::HostTensor& router,
      std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
      std::span<const model::HostTensor* const> down) override;
  Status load_rope(const std::function<RopeTable()>& whole) override;
  Result<Activation> allocate(int64_t rows, int64_t cols) override;
  Result<Activation> allocate_residual(int64_t rows, int64_t cols) override;
  Result<std::optional<uint64_t>> kv_memory_limit(const kv::KvLayout& layout) override;
  Result<std::unique_ptr<kv::PageMemory>> create_kv_memory(const kv::KvLayout& layout,
                                                           uint32_t blocks,
                                                           uint32_t tails) override;
  Status prepare(const KvPages& kv, uint32_t sequences, const StepBody& body) override;

  Status run_step(const StepRequest& request, const StepBody& body,
                  std::span<RowResult> results) override;
  void embed(const StepView& step, const EmbeddingWeight& table, Activation out) override;
  void norm_linear(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                   const LinearWeight& weight, Activation out) override;
  void write_kv(const StepView& step, uint32_t layer, const QkvParams& params, Activation qkv,
                const KvPages& kv) override;
  void layer_written(uint32_t layer) override;
  void attention(const StepView& step, uint32_t layer, const AttentionShape& shape, Activation qkv,
                 const KvPages& kv, Activation out) override;
  void linear_add(uint32_t rows, Activation in, const LinearWeight& weight, Activation x) override;
  void norm_gate_up(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                    const LinearWeight& gate_up, Activation out) override;
  void norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                const MoeShape& shape, const MoeWeight& weight) override;
  void outputs(Activation x, const VectorWeight& norm, float eps,
               const LinearWeight& head) override;

  [[nodiscard]] size_t weight_bytes() const override { return loader_.bytes(); }
  [[nodiscard]] std::string_view name() const override { return name_; }
  // Kernels and copies of the step that so many rows replay, of sequences that decode or that
  // verify several each; 0: none is recorded.
  [[nodiscard]] size_t recorded_nodes(uint32_t rows, bool verifying = false) const;

 private:
  // A step of one bucket's size.
  struct Recording {
    uint32_t rows = 0;
    uint32_t sequences = 0;
    cuda::GraphExec graph;
  };

  Status plan_memory(const kv::KvLayout& layout);
  Result<cuda::MemoryRequest> memory_request(const kv::KvLayout& layout, uint64_t blocks,
                                             uint64_t tail_bytes,
                                             std::vector<cuda::MemoryPart> parts) const;
  Result<uint64_t> plan_blocks(cuda::MemoryRequest& request) const;
  std::vector<cuda::MemoryNeighbour> neighbours() const;
  // Null: it must be enqueued.
  [[nodiscard]] const Recording* recording_for(const StepRequest& request) const;
  Status describe(const StepRequest& request, const StepCounts& counts);
  Status replay(const StepRequest& request, const Recording& recording,
                std::span<RowResult> results);
  Status run_eagerly(const StepRequest& request, const StepBody& body,
                     std::span<RowResult> results);
  Status walk_hook();
  // Runs, and then records, a step.
  Result<Recording> record(const KvPages& kv, const DummyShape& shape, const StepBody& body);
  Status choose_algorithms(const KvPages& kv);
  void plan_linear(const CudaLinear& weight, std::vector<LinearRef>& shapes);
  Status warm(const KvPages& kv, const DummyShape& shape, const StepBody& body);
  void note(Status status);  // keeps the first failure of a step
  [[nodiscard]] cuda::SmallDevice small_device() const;
  [[nodiscard]] Precision precision() const {
    return options_.quantization == Quantization::kFp8 ? Precision::kFp8 : Precision::kBf16;
  }

  const CudaOptions options_;
  const model::ModelConfig model_;
  const cuda::Device device_;
  const cuda::Stream stream_;
  const cuda::CublasLt lt_;
  const std::string name_;
  const uint32_t step_sequences_;  // most of any step
  const uint32_t max_context_;
  FewRows few_;  // once planned
  DeviceArena arena_;
  CudaWeightLoader loader_;
  LinearRunner::Shapes shapes_;  // of what was loaded
  int64_t longest_input_ = 0;    // of any projection
  std::optional<LinearRunner> linear_;
  Stages stages_;
  std::optional<cuda::MoeShapes> moe_;  // once a mixture was loaded
  std::byte* moe_memory_ = nullptr;
  CudaAttention attention_;
  CudaOutputs outputs_;
  StepArea area_;
  cuda::DeviceRope rope_;
  bool planned_ = false;  // plan_memory() has run, for layout_
  kv::KvLayout layout_;

  // Once prepared, one for each of recorded_.decoding() and recorded_.verifying().
  RecordedSteps recorded_;
  std::vector<Recording> decode_recordings_, verify_recordings_;
  KvPages recorded_kv_;

  // The step that runs.
  Status status_;
  cuda::DeviceStep step_;
  cuda::DeviceKv kv_;
  bool recording_ = false;
  std::span<const RowOutput> wanted_;
  std::span<RowResult> results_;
  const LayerHook* hook_ = nullptr;  // of the step that is being enqueued, until it was called
  std::vector<cuda::Event> layer_events_;
};

}  // namespace tandem::engine
