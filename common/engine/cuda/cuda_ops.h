#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/memory_plan.h"
#include "common/engine/ops.h"

namespace tandem::model {
struct ModelConfig;
}  // namespace tandem::model

namespace tandem::engine {

class StepProfile;

// How projections are kept, where that is not as the model's type says.
enum class Quantization : uint8_t {
  kNone,
  // float8 e4m3 with a scale for each output channel; activations of more than 48 rows quantized
  // row by row; embeddings and head stay bf16.
  kFp8,
};

struct CudaOptions {
  int device = 0;               // as CUDA counts under CUDA_VISIBLE_DEVICES
  uint32_t max_rows = 512;      // of the largest step: EngineOptions::max_rows
  uint32_t max_context = 0;     // EngineOptions::max_context; 0: the model's
  uint32_t max_sequences = 64;  // that decode together; as many prompts may join them in a step
  // New tokens of one sequence up to which a step of few of them is recorded, so that several
  // guesses are verified as fast as one token is made; at most 16.
  uint32_t max_verify_rows = 1;
  double memory_utilization = 0.9;  // share of the card's memory that this process may take
  Quantization quantization = Quantization::kNone;
  // The KV pool to come, if it is known: then all memory is planned before anything is loaded, and
  // a model that does not fit is refused at once. 0 blocks: as many as fit.
  std::optional<kv::KvLayout> kv_layout;
  uint64_t kv_blocks = 0;
  uint64_t kv_tails = 0;
  // Memory of the card that this process will take beside: the pool leaves it free.
  std::vector<cuda::MemoryPart> later;
  // Folders to search for cuBLASLt first; empty: where the system looks.
  std::vector<std::string> libraries;
  // Folder in which the algorithms that cuBLASLt was found to be fastest with are kept between
  // starts, a file for each kind of card, driver and library; empty: they are timed at every start.
  std::string cache_dir;
  // Steps are not recorded, and every stage of them is timed into this, which outlives the Ops.
  StepProfile* profile = nullptr;
};

// For steps of one model, whose shape everything is planned for; its weights come by load_…().
// Takes the device and makes the calling thread its thread: every op comes from it. Weights are
// bf16, whatever the checkpoint holds; activations bf16 around a float32 residual stream.
// Errors: kUnsupported in a build without CUDA or for a card that it has no code for, kUnavailable
// without driver or card, kInvalidArgument for an index that is not there.
[[nodiscard]] Result<std::unique_ptr<Ops>> create_cuda_ops(const CudaOptions& options,
                                                           const model::ModelConfig& model);

}  // namespace tandem::engine
