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
};

// Opens the model and reads its tokenizer. Errors name the file or the key at fault.
[[nodiscard]] Result<NodeModel> open_node_model(const ClusterConfig& config,
                                                const NodeSettings& node, const Clock& clock);

// The format that a choice stands for with weights of that type.
[[nodiscard]] kv::KvFormat kv_format(KvFormatChoice choice, DType weights);

// Sets what follows from the size of the pool; fails when it is too small to be one.
[[nodiscard]] Status set_blocks(const NodeSettings& node, uint64_t blocks, NodeModel& model);

// Compute threads of one node: its `threads`, or an equal share of the `cpus` this process may use
// among the nodes of its file.
[[nodiscard]] uint32_t compute_threads(const ClusterConfig& config, const NodeSettings& node,
                                       uint32_t cpus);

}  // namespace tandem::node
