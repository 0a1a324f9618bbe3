#pragma once

#include <cstdint>
#include <vector>

#include "common/cuda/device_info.h"
#include "common/cuda/memory_plan.h"
#include "common/engine/cuda/attention_layout.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/cuda/linear.h"
#include "common/engine/cuda/step_area.h"
#include "common/kv/layout.h"
#include "common/model/config.h"

namespace tandem::engine {

// What an engine for one model is made for. Pure: known before anything is loaded.
struct EngineLimits {
  EngineLimits(const CudaOptions& options, const model::ModelConfig& model,
               const kv::KvLayout& layout, const cuda::DeviceInfo& device);

  uint32_t max_context = 0;
  uint32_t step_sequences = 0;  // most of any step
  uint32_t logit_rows = 0;      // whose logits exist at once
  FewRows few;                  // what decode attention takes
  AttentionLimits attention;
  LinearRunner::Limits linear;
  StepCounts step;
};

// Device memory that the engine will take for each purpose, everything but the KV pool.
[[nodiscard]] std::vector<cuda::MemoryPart> footprint(const CudaOptions& options,
                                                      const model::ModelConfig& model,
                                                      const EngineLimits& limits);

}  // namespace tandem::engine
