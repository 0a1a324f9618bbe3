#include "common/engine/cuda/supported_model.h"

#include <string>
#include <string_view>

#include "common/engine/cuda/fp8_row.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/step.h"

namespace tandem::engine {
namespace {

tl::unexpected<Error> refuse(std::string_view field, uint64_t value, const std::string& taken) {
  return fail(ErrorCode::kUnsupported,
              std::string(field) + " is " + std::to_string(value) + ", and the CUDA engine takes " +
                  taken + "; serve this model with device cpu",
              std::string(field));
}

Status at_most(std::string_view field, uint64_t value, uint64_t most, std::string_view of = "") {
  if (value <= most) return {};
  return refuse(field, value, "at most " + std::to_string(most) + std::string(of));
}

Status multiple(std::string_view field, uint64_t value) {
  if (value % cuda::kMoeSizes == 0) return {};
  return refuse(field, value,
                "multiples of " + std::to_string(cuda::kMoeSizes) + " in mixtures of experts");
}

Status check_mixture(const model::ModelConfig& model) {
  const model::MoeConfig& moe = model.moe;
  TANDEM_TRY(at_most("num_experts", moe.experts, cuda::kMaxExperts));
  TANDEM_TRY(at_most("num_experts_per_tok", moe.experts_per_token, cuda::kMaxExpertsPerToken));
  TANDEM_TRY(at_most("hidden_size", model.hidden, cuda::kMaxMoeHidden, " in mixtures of experts"));
  TANDEM_TRY(multiple("hidden_size", model.hidden));
  TANDEM_TRY(at_most("moe_intermediate_size", moe.intermediate, cuda::kMaxExpertSize));
  return multiple("moe_intermediate_size", moe.intermediate);
}

}  // namespace

Status check_supported(const CudaOptions& options, const model::ModelConfig& model) {
  TANDEM_TRY(at_most("head_dim", model.head_dim, cuda::kMaxHeadDim));
  TANDEM_TRY(at_most("num_attention_heads", model.heads, cuda::kMaxHeads));
  if (model.moe.experts > 0) TANDEM_TRY(check_mixture(model));
  if (options.quantization == Quantization::kFp8) TANDEM_TRY(check_fp8_model(model));
  if (options.max_rows > cuda::kMaxStepRows)
    return fail(ErrorCode::kUnsupported,
                "max_batch_tokens is " + std::to_string(options.max_rows) +
                    ", and the CUDA engine takes at most " + std::to_string(cuda::kMaxStepRows) +
                    " tokens a step; lower it",
                "max_batch_tokens");
  if (options.kv_layout && options.kv_layout->format == kv::KvFormat::kF32)
    return fail(ErrorCode::kUnsupported,
                "kv.format is f32, which the CUDA engine does not keep; use bf16", "kv.format");
  return {};
}

}  // namespace tandem::engine
