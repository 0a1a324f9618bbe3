#include "common/engine/cuda/engine_limits.h"

#include <algorithm>
#include <string_view>

#include "common/engine/cuda/outputs.h"
#include "kernels/cuda/moe.h"

namespace tandem::engine {
namespace {

// Logits exist for at most this many rows at once, and in at most this much memory.
constexpr uint32_t kLogitRows = 128;
constexpr size_t kLogitBytes = size_t{256} << 20;
// Rows of a step whose sequences verify several each, unless more sequences decode together.
constexpr uint32_t kVerifyRows = 128;
constexpr uint64_t kAlign = 256;  // DeviceArena's

uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::vector<uint32_t> distinct(std::vector<uint32_t> values) {
  std::ranges::sort(values);
  const auto rest = std::ranges::unique(values);
  values.erase(rest.begin(), rest.end());
  return values;
}

bool has_dense_layer(const model::ModelConfig& model) {
  for (uint32_t i = 0; i < model.layers; ++i)
    if (!model.is_moe_layer(i)) return true;
  return false;
}

// As CudaWeightLoader keeps it.
uint64_t tensor_bytes(const model::TensorSpec& tensor, const model::ModelConfig& model, bool fp8) {
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  const std::string_view name = tensor.name;
  const bool router = model.moe.experts > 0 && name.ends_with("mlp.gate.weight");
  if (router || (tensor.shape.size() < 2 && !name.ends_with(".bias")))
    return aligned(elements * sizeof(float));
  const bool projection = tensor.shape.size() == 2 && name.find(".layers.") != name.npos;
  if (!fp8 || !projection) return aligned(elements * sizeof(Bf16));
  return aligned(elements) + aligned(static_cast<uint64_t>(tensor.shape[0]) * sizeof(float));
}

uint64_t activation_bytes(const model::ModelConfig& model, uint64_t rows) {
  const uint64_t q = uint64_t{model.heads} * model.head_dim;
  const uint64_t kv = uint64_t{model.kv_heads} * model.head_dim;
  uint64_t bytes = aligned(rows * model.hidden * sizeof(float)) +
                   aligned(rows * (q + 2 * kv) * sizeof(Bf16)) + aligned(rows * q * sizeof(Bf16));
  if (has_dense_layer(model)) bytes += aligned(rows * model.intermediate * sizeof(Bf16));
  if (model.moe.experts == 0) return bytes;
  const cuda::MoeShapes shapes{model.hidden, model.moe.intermediate, model.moe.experts,
                               model.moe.experts_per_token, model.moe.normalize_top_k};
  return bytes + aligned(cuda::moe_buffer_bytes(shapes, static_cast<uint32_t>(rows)));
}

}  // namespace

EngineLimits::EngineLimits(const CudaOptions& options, const model::ModelConfig& model,
                           const kv::KvLayout& layout, const cuda::DeviceInfo& device)
    : max_context(options.max_context == 0 ? model.max_positions
                                           : std::min(options.max_context, model.max_positions)),
      step_sequences(2 * options.max_sequences) {
  attention.heads = model.heads;
  attention.layout = layout;
  attention.windows = distinct(model.windows);
  attention.max_rows = options.max_rows;
  attention.max_context = max_context;
  attention.max_sequences = step_sequences;
  attention.blocks = static_cast<uint32_t>(device.multiprocessors);
  attention.l2_bytes = device.l2_bytes;

  const auto fitting = static_cast<uint32_t>(kLogitBytes / (model.vocab * sizeof(float)));
  logit_rows = std::max({std::min(kLogitRows, fitting), options.max_sequences, uint32_t{1}});

  few.each = std::clamp(options.max_verify_rows, 1U, std::min(cuda::kDecodeRows, max_context));
  few.together =
      std::min({few.each * options.max_sequences, std::max(kVerifyRows, options.max_sequences),
                options.max_rows, logit_rows});
  attention.few = few;

  linear.max_rows = std::max(options.max_rows, logit_rows);
  linear.max_hidden = model.hidden;
  if (has_dense_layer(model)) linear.max_gate_up = 2 * int64_t{model.intermediate};
  if (options.quantization == Quantization::kFp8)
    linear.max_fp8_in = std::max(model.hidden, model.heads * model.head_dim);

  step.rows = options.max_rows;
  step.sequences = step_sequences;
  step.outputs = options.max_rows;
  step.blocks = size_t{step_sequences} * ((max_context + kv::kBlockTokens - 1) / kv::kBlockTokens);
}

std::vector<cuda::MemoryPart> footprint(const CudaOptions& options, const model::ModelConfig& model,
                                        const EngineLimits& limits) {
  const bool fp8 = options.quantization == Quantization::kFp8;
  uint64_t weights = 0;
  for (const model::TensorSpec& tensor : model::expected_tensors(model))
    weights += tensor_bytes(tensor, model, fp8);
  const OutputLayout outputs(model.vocab, limits.logit_rows, limits.max_context);
  const uint64_t rope = uint64_t{limits.max_context} * model.head_dim / 2 * sizeof(float2);
  const uint64_t workspace = aligned(AttentionLayout(limits.attention).bytes) +
                             aligned(LinearRunner::scratch_bytes(limits.linear)) +
                             outputs.workspace_bytes() + aligned(StepLayout(limits.step).bytes) +
                             aligned(rope);
  std::vector<cuda::MemoryPart> parts(4);
  parts[0] = {.name = "weights", .bytes = weights};
  parts[1] = {.name = "activations",
              .bytes = activation_bytes(model, options.max_rows),
              .remedy = "lower max_batch_tokens"};
  parts[2] = {.name = "workspace",
              .bytes = workspace,
              .remedy = "lower max_sequences or model.max_context"};
  parts[3] = {.name = "logits", .bytes = aligned(outputs.logits_bytes)};
  return parts;
}

}  // namespace tandem::engine
