#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/config/units.h"
#include "common/cuda/memory_plan.h"
#include "common/kv/layout.h"
#include "common/model/checkpoint.h"

namespace tandem::node {

// A node's model on disk and everything that follows from it and the configuration, before weights
// are loaded.
struct NodeModel {
  std::unique_ptr<model::Checkpoint> checkpoint;
  std::string id;
  std::string tokenizer_hash;
  DType weights = DType::kBf16;
  kv::KvLayout layout;
  DeviceChoice device;
  uint32_t blocks = 0;       // 0: what is left of the card, known once weights are loaded
  uint32_t max_context = 0;  // of the model, the configuration and the pool the least
  // What the node takes of its card once the pool is there.
  std::vector<cuda::MemoryPart> later;
};

// What follows from the model's config.json alone, without its files: everything but `checkpoint`
// and `tokenizer_hash`. Pure.
[[nodiscard]] Result<NodeModel> plan_node_model(const ClusterConfig& config,
                                                const NodeSettings& node,
                                                const model::ModelConfig& model);

// Opens the model of the file; errors name the file or the key at fault.
[[nodiscard]] Result<std::unique_ptr<model::Checkpoint>> open_checkpoint(
    const ModelSettings& settings);

// Opens the model, reads its tokenizer and plans. Errors name the file or the key at fault.
[[nodiscard]] Result<NodeModel> open_node_model(const ClusterConfig& config,
                                                const NodeSettings& node, const Clock& clock);

// The format that a choice stands for with weights of that type.
[[nodiscard]] kv::KvFormat kv_format(KvFormatChoice choice, DType weights);

// Sets what follows from the size of the pool; fails when it is too small to be one.
[[nodiscard]] Status set_blocks(const ClusterConfig& config, const NodeSettings& node,
                                uint64_t blocks, NodeModel& model);

// The key that says how large the pool is: "kv.memory", "kv.blocks", or of the node's section
// "kv_memory" or "kv_blocks".
[[nodiscard]] std::string pool_size_key(const ClusterConfig& config, const NodeSettings& node);

// The longest prompt and output that the file and the model allow, whatever the pool holds.
[[nodiscard]] uint32_t wanted_context(const ModelSettings& settings,
                                      const model::ModelConfig& model);

// Whether a pool in host memory can ever be filled on a machine that has `memory` bytes; 0 is not
// known and enough.
[[nodiscard]] Status check_pool_memory(const ClusterConfig& config, const NodeSettings& node,
                                       const NodeModel& model, uint64_t memory);

// Compute threads of one node: its `threads`, or an equal share of the `cpus` this process may use
// among the nodes of its file.
[[nodiscard]] uint32_t compute_threads(const ClusterConfig& config, const NodeSettings& node,
                                       uint32_t cpus);
// Those of the CPU tail beside its device: `cpu_tail.threads`, or as many as the node's own.
[[nodiscard]] uint32_t tail_threads(const ClusterConfig& config, const NodeSettings& node,
                                    uint32_t cpus);

}  // namespace tandem::node
