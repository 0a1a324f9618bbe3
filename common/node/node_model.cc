#include "common/node/node_model.h"

#include <algorithm>
#include <utility>

#include "common/model/text.h"

namespace tandem::node {
namespace {

DType weight_type(WeightType choice, DType stored) {
  switch (choice) {
    case WeightType::kFloat32:
      return DType::kF32;
    case WeightType::kBf16:
      return DType::kBf16;
    case WeightType::kAuto:
      break;
  }
  return stored == DType::kF32 ? DType::kF32 : DType::kBf16;
}

kv::KvFormat kv_format(KvFormatChoice choice, DType weights) {
  switch (choice) {
    case KvFormatChoice::kF32:
      return kv::KvFormat::kF32;
    case KvFormatChoice::kBf16:
      return kv::KvFormat::kBf16;
    case KvFormatChoice::kInt8:
      return kv::KvFormat::kInt8;
    case KvFormatChoice::kK8v4:
      return kv::KvFormat::kK8V4;
    case KvFormatChoice::kInt4:
      return kv::KvFormat::kInt4;
    case KvFormatChoice::kFp8E4m3:
      return kv::KvFormat::kFp8E4M3;
    case KvFormatChoice::kAuto:
      break;
  }
  return weights == DType::kF32 ? kv::KvFormat::kF32 : kv::KvFormat::kBf16;
}

// The two blocks of the self-test, and one that grows.
constexpr uint64_t kFewestBlocks = 4;

Result<uint32_t> block_count(const ClusterConfig& config, const NodeSettings& node,
                             const kv::KvLayout& layout) {
  uint64_t blocks = node.kv_blocks;
  if (blocks == 0 && node.kv_memory.bytes > 0) blocks = node.kv_memory.bytes / layout.block_bytes();
  if (blocks == 0 && node.kv_memory.bytes == 0) {
    const uint64_t bytes =
        config.kv.memory.bytes != 0 ? config.kv.memory.bytes : kDefaultKvMemory.bytes;
    blocks = config.kv.blocks != 0 ? config.kv.blocks : bytes / layout.block_bytes();
  }
  if (blocks < kFewestBlocks) {
    return fail(ErrorCode::kConfig,
                "node " + node.name + ": the KV memory holds " + std::to_string(blocks) +
                    " blocks of " + std::to_string(layout.block_bytes()) + " bytes (" +
                    layout.describe() + "), at least " + std::to_string(kFewestBlocks) +
                    " are needed: raise kv.memory",
                "kv.memory");
  }
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, 1U << 30));
}

}  // namespace

Result<NodeModel> open_node_model(const ClusterConfig& config, const NodeSettings& node,
                                  const Clock& clock) {
  NodeModel result;
  const bool dummy = config.model.load_format == LoadFormat::kDummy;
  TANDEM_ASSIGN(result.checkpoint,
                model::Checkpoint::open(
                    config.model.path,
                    {.format = dummy ? model::LoadFormat::kDummy : model::LoadFormat::kAuto}));
  const model::ModelConfig& m = result.checkpoint->config();
  TANDEM_ASSIGN(auto text, model::load_text(*result.checkpoint, clock));
  result.id = served_model_id(config.model);
  result.tokenizer_hash = std::string(text.tokenizer->hash());
  result.weights = weight_type(config.model.dtype, m.dtype);
  result.layout = {.layers = m.layers,
                   .kv_heads = m.kv_heads,
                   .head_dim = m.head_dim,
                   .format = kv_format(config.kv.format, result.weights)};
  TANDEM_TRY(kv::validate(result.layout));
  TANDEM_ASSIGN(result.blocks, block_count(config, node, result.layout));
  uint64_t context = m.max_positions;
  if (config.model.max_context != 0)
    context = std::min<uint64_t>(context, config.model.max_context);
  context = std::min<uint64_t>(context, uint64_t{result.blocks} * kv::kBlockTokens);
  result.max_context = static_cast<uint32_t>(context);
  return result;
}

uint32_t compute_threads(const ClusterConfig& config, const NodeSettings& node, uint32_t cpus) {
  if (node.threads != 0) return node.threads;
  if (!node.cpus.empty()) return static_cast<uint32_t>(node.cpus.size());
  const auto nodes = static_cast<uint32_t>(config.prefill.size() + config.decode.size());
  return std::max(1U, cpus / std::max(1U, nodes));
}

}  // namespace tandem::node
