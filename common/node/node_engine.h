#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/engine/engine.h"
#include "common/kv/page_memory.h"
#include "common/node/node_model.h"
#include "common/node/step_executor.h"

namespace tandem::node {

// Whether the engine of the node's device runs this model as the settings ask; an error's param is
// a field of the model's config.json, a key of the node or kv.format. Reads no weights, opens no
// card.
[[nodiscard]] Status check_engine(const ClusterConfig& config, const NodeSettings& settings,
                                  const NodeModel& planned, const model::ModelConfig& model);

// An engine and the memory of the pool that its steps work on. The step function is made, called
// and destroyed on one device thread; the memory goes to the control thread's store.
struct PooledEngine {
  StepFunction step;
  std::unique_ptr<kv::PageMemory> memory;
};
// Makes the pool and warms the engine for steps on it in which up to `sequences` decode together.
[[nodiscard]] Result<PooledEngine> give_pool(std::shared_ptr<engine::Ops> ops,
                                             std::shared_ptr<engine::Engine> engine,
                                             const kv::KvLayout& layout, uint32_t blocks,
                                             uint32_t tails, uint32_t sequences);

// What a node computes with.
struct NodeEngine {
  PooledEngine pooled;
  std::string name;  // "cpu-avx512bf16"
  size_t weight_bytes = 0;
};
// Loads the weights for the device that the settings name. A pool whose size is left open gets what
// the card has left, and `model` is told. `tails`: open pages of the pool; `cache_dir`: where
// algorithms that were searched are kept, empty for nowhere. On the device thread.
[[nodiscard]] Result<NodeEngine> create_node_engine(const ClusterConfig& config,
                                                    const NodeSettings& settings,
                                                    const std::string& cache_dir, uint32_t tails,
                                                    NodeModel& model);

}  // namespace tandem::node
