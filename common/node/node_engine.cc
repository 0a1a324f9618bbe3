#include "common/node/node_engine.h"

#include <utility>

#include "common/base/process_limits.h"
#include "common/engine/cpu/cpu_ops.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/cuda/supported_model.h"

namespace tandem::node {
namespace {

engine::CudaOptions cuda_options(const ClusterConfig& config, const NodeSettings& settings,
                                 const NodeModel& model) {
  engine::CudaOptions options;
  options.device = static_cast<int>(model.device.index);
  options.max_rows = settings.max_batch_tokens;
  options.max_context = model.max_context;
  options.max_sequences = settings.max_sequences;
  options.memory_utilization = gpu_memory_share(config, settings);
  options.libraries = config.gpu.libraries;
  options.kv_layout = model.layout;
  options.kv_blocks = model.blocks;
  options.later = model.later;
  if (settings.quantization == QuantizationChoice::kFp8)
    options.quantization = engine::Quantization::kFp8;
  return options;
}

Result<std::unique_ptr<engine::Ops>> create_ops(const ClusterConfig& config,
                                                const NodeSettings& settings,
                                                const std::string& cache_dir, uint32_t tails,
                                                const NodeModel& model) {
  if (model.device.cuda) {
    engine::CudaOptions options = cuda_options(config, settings, model);
    options.kv_tails = tails;
    options.cache_dir = cache_dir;
    return engine::create_cuda_ops(options, model.checkpoint->config());
  }
  engine::CpuOptions options;
  options.threads = compute_threads(config, settings, usable_cpus());
  options.cpus.assign(settings.cpus.begin(), settings.cpus.end());
  options.weights = model.weights;
  TANDEM_ASSIGN(std::unique_ptr<engine::Ops> ops, engine::create_cpu_ops(options));
  return ops;
}

Status size_pool(const ClusterConfig& config, const NodeSettings& settings, engine::Ops& ops,
                 uint32_t tails, NodeModel& model) {
  TANDEM_ASSIGN(const auto limit, ops.kv_memory_limit(model.layout));
  const uint64_t tail_bytes = tails * model.layout.tail_layout().block_bytes();
  const uint64_t bytes = limit.value_or(0);
  const uint64_t rest = bytes > tail_bytes ? bytes - tail_bytes : 0;
  return set_blocks(config, settings, rest / model.layout.block_bytes(), model);
}

}  // namespace

Status check_engine(const ClusterConfig& config, const NodeSettings& settings,
                    const NodeModel& planned, const model::ModelConfig& model) {
  if (!planned.device.cuda) return {};
  return engine::check_supported(cuda_options(config, settings, planned), model);
}

Result<PooledEngine> give_pool(std::shared_ptr<engine::Ops> ops,
                               std::shared_ptr<engine::Engine> engine, const kv::KvLayout& layout,
                               uint32_t blocks, uint32_t tails, uint32_t sequences) {
  PooledEngine pooled;
  TANDEM_ASSIGN(pooled.memory, ops->create_kv_memory(layout, blocks, tails));
  const engine::KvPages pages{.layout = layout,
                              .pages = pooled.memory->pages(),
                              .blocks = blocks,
                              .tail = pooled.memory->tails(),
                              .tails = tails};
  TANDEM_TRY(engine->prepare(pages, sequences));
  // The engine goes before the ops that own its memory.
  pooled.step = [ops = std::move(ops), engine = std::move(engine), pages](
                    auto batch, const auto& hook) { return engine->step(batch, pages, hook); };
  return pooled;
}

Result<NodeEngine> create_node_engine(const ClusterConfig& config, const NodeSettings& settings,
                                      const std::string& cache_dir, uint32_t tails,
                                      NodeModel& model) {
  TANDEM_ASSIGN(std::shared_ptr<engine::Ops> ops,
                create_ops(config, settings, cache_dir, tails, model));
  const engine::EngineOptions options{.max_rows = settings.max_batch_tokens,
                                      .max_context = model.max_context};
  TANDEM_ASSIGN(std::shared_ptr<engine::Engine> engine,
                engine::Engine::create(*model.checkpoint, *ops, options));
  if (model.blocks == 0) TANDEM_TRY(size_pool(config, settings, *ops, tails, model));
  NodeEngine made;
  TANDEM_ASSIGN(made.pooled, give_pool(ops, std::move(engine), model.layout, model.blocks, tails,
                                       settings.max_sequences));
  made.name = ops->name();
  made.weight_bytes = ops->weight_bytes();
  return made;
}

}  // namespace tandem::node
