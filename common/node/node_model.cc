#include "common/node/node_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/machine_limits.h"
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

// The two blocks of the self-test, and one that grows.
constexpr uint64_t kFewestBlocks = 4;

// nullopt: nobody said, and the pool takes what is left of the card.
std::optional<uint64_t> configured_blocks(const ClusterConfig& config, const NodeSettings& node,
                                          const kv::KvLayout& layout, bool cuda) {
  if (node.kv_blocks != 0) return node.kv_blocks;
  if (node.kv_memory.bytes != 0) return node.kv_memory.bytes / layout.block_bytes();
  if (config.kv.blocks != 0) return config.kv.blocks;
  if (config.kv.memory.bytes != 0) return config.kv.memory.bytes / layout.block_bytes();
  if (cuda) return std::nullopt;
  return kDefaultKvMemory.bytes / layout.block_bytes();
}

}  // namespace

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

std::string pool_size_key(const ClusterConfig& config, const NodeSettings& node) {
  if (node.kv_blocks != 0) return "kv_blocks";
  if (node.kv_memory.bytes != 0) return "kv_memory";
  return config.kv.blocks != 0 ? "kv.blocks" : "kv.memory";
}

uint32_t wanted_context(const ModelSettings& settings, const model::ModelConfig& model) {
  if (settings.max_context == 0) return model.max_positions;
  return std::min(model.max_positions, settings.max_context);
}

Status set_blocks(const ClusterConfig& config, const NodeSettings& node, uint64_t blocks,
                  NodeModel& model) {
  if (blocks < kFewestBlocks) {
    const std::string key = pool_size_key(config, node);
    return fail(ErrorCode::kConfig,
                "node " + node.name + ": the KV memory holds " + std::to_string(blocks) +
                    " blocks of " + std::to_string(model.layout.block_bytes()) + " bytes (" +
                    model.layout.describe() + "), at least " + std::to_string(kFewestBlocks) +
                    " are needed; raise " + key +
                    (model.device.cuda ? " or gpu_memory_utilization" : ""),
                key);
  }
  model.blocks = static_cast<uint32_t>(std::min<uint64_t>(blocks, 1U << 30));
  const uint64_t positions = uint64_t{model.blocks} * kv::kBlockTokens;
  model.max_context = static_cast<uint32_t>(std::min<uint64_t>(model.max_context, positions));
  return {};
}

Status check_pool_memory(const ClusterConfig& config, const NodeSettings& node,
                         const NodeModel& model, uint64_t memory) {
  const uint64_t bytes = uint64_t{model.blocks} * model.layout.block_bytes();
  if (memory == 0 || bytes <= memory) return {};
  const std::string key = pool_size_key(config, node);
  return fail(ErrorCode::kConfig,
              "node " + node.name + ": its KV blocks take " + approximate_size(bytes) +
                  ", and this machine has " + approximate_size(memory) + "; lower " + key,
              key);
}

Result<NodeModel> plan_node_model(const ClusterConfig& config, const NodeSettings& node,
                                  const model::ModelConfig& m) {
  NodeModel result;
  result.id = served_model_id(config.model);
  auto device = parse_device(node.device);
  if (!device) {
    return fail(ErrorCode::kConfig, "node " + node.name + ": " + device.error().detail, "device");
  }
  result.device = *device;
  result.weights = weight_type(config.model.dtype, m.dtype);
  if (result.device.cuda) {
    if (config.model.dtype == WeightType::kFloat32) {
      return fail(ErrorCode::kConfig,
                  "node " + node.name +
                      ": the CUDA engine keeps weights in bf16, not float32; use "
                      "model.dtype auto or bf16, or device cpu",
                  "model.dtype");
    }
    result.weights = DType::kBf16;
  }
  result.layout = {.layers = m.layers,
                   .kv_heads = m.kv_heads,
                   .head_dim = m.head_dim,
                   .format = kv_format(config.kv.format, result.weights)};
  if (const Status valid = kv::validate(result.layout); !valid)
    return fail(ErrorCode::kConfig, valid.error().detail, "model.path");
  if (result.device.cuda && result.layout.format == kv::KvFormat::kF32) {
    return fail(ErrorCode::kConfig,
                "node " + node.name + ": the CUDA engine keeps no float32 KV cache; use bf16",
                "kv.format");
  }
  result.max_context = wanted_context(config.model, m);
  if (const auto blocks = configured_blocks(config, node, result.layout, result.device.cuda)) {
    TANDEM_TRY(set_blocks(config, node, *blocks, result));
  }
  return result;
}

Result<std::unique_ptr<model::Checkpoint>> open_checkpoint(const ModelSettings& settings) {
  const bool dummy = settings.load_format == LoadFormat::kDummy;
  return model::Checkpoint::open(
      settings.path, {.format = dummy ? model::LoadFormat::kDummy : model::LoadFormat::kAuto});
}

Result<NodeModel> open_node_model(const ClusterConfig& config, const NodeSettings& node,
                                  const Clock& clock) {
  TANDEM_ASSIGN(auto checkpoint, open_checkpoint(config.model));
  TANDEM_ASSIGN(const auto text, model::load_text(*checkpoint, clock));
  TANDEM_ASSIGN(NodeModel result, plan_node_model(config, node, checkpoint->config()));
  if (!result.device.cuda) TANDEM_TRY(check_pool_memory(config, node, result, machine_memory()));
  result.tokenizer_hash = std::string(text.tokenizer->hash());
  result.checkpoint = std::move(checkpoint);
  return result;
}

uint32_t compute_threads(const ClusterConfig& config, const NodeSettings& node, uint32_t cpus) {
  if (node.threads != 0) return node.threads;
  if (!node.cpus.empty()) return static_cast<uint32_t>(node.cpus.size());
  const auto nodes = static_cast<uint32_t>(config.prefill.size() + config.decode.size());
  return std::max(1U, cpus / std::max(1U, nodes));
}

uint32_t tail_threads(const ClusterConfig& config, const NodeSettings& node, uint32_t cpus) {
  const uint32_t threads = config.cpu_tail.threads;
  return threads != 0 ? threads : compute_threads(config, node, cpus);
}

}  // namespace tandem::node
