#include "common/node/cpu_tail.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/config/units.h"
#include "common/engine/cpu/cpu_ops.h"
#include "common/engine/engine.h"
#include "common/node/node_engine.h"
#include "common/node/page_copy.h"

namespace tandem::node {
namespace {

constexpr uint64_t kMostFreeBelow = gib(2).bytes;
constexpr uint64_t kFewestBlocks = 4;

uint32_t tails_of(const kv::KvLayout& layout, uint32_t tails) {
  return layout.needs_tail() ? tails : 0;
}

}  // namespace

Result<TailThresholds> tail_thresholds(const CpuTailSettings& settings, uint64_t pool_bytes) {
  const std::string pool =
      "the KV memory of the node's device, " + format_size(ByteSize{pool_bytes}) + " in all";
  TailThresholds t{.free_below = settings.free_below.bytes,
                   .return_above = settings.return_above.bytes};
  if (t.free_below == 0) t.free_below = std::min(kMostFreeBelow, pool_bytes / 4);
  if (t.free_below >= pool_bytes) {
    return fail(ErrorCode::kConfig,
                "cpu_tail.free_below is " + format_size(ByteSize{t.free_below}) + ", not below " +
                    pool +
                    ": every long request would leave it; lower this or give "
                    "the node more KV memory",
                "cpu_tail.free_below");
  }
  if (t.return_above == 0) {
    t.return_above = std::min(2 * t.free_below, t.free_below + (pool_bytes - t.free_below) / 2);
  }
  if (t.return_above < t.free_below || t.return_above > pool_bytes) {
    return fail(ErrorCode::kConfig,
                "cpu_tail.return_above is " + format_size(ByteSize{t.return_above}) +
                    ", but must lie between " + "cpu_tail.free_below (" +
                    format_size(ByteSize{t.free_below}) + ") and " + pool,
                "cpu_tail.return_above");
  }
  return t;
}

Result<TailPlan> plan_tail(const CpuTailSettings& settings, const NodeModel& model) {
  TailPlan plan{.layout = model.layout, .blocks = 0, .thresholds = {}};
  TANDEM_ASSIGN(plan.thresholds,
                tail_thresholds(settings, uint64_t{model.blocks} * model.layout.block_bytes()));
  if (settings.format != KvFormatChoice::kAuto)
    plan.layout.format = kv_format(settings.format, model.weights);
  const uint64_t blocks = settings.memory.bytes / plan.layout.block_bytes();
  if (blocks < kFewestBlocks) {
    return fail(ErrorCode::kConfig,
                "cpu_tail.memory holds " + std::to_string(blocks) + " blocks of " +
                    std::to_string(plan.layout.block_bytes()) + " bytes, at least " +
                    std::to_string(kFewestBlocks) + " are needed; raise it",
                "cpu_tail.memory");
  }
  plan.blocks = static_cast<uint32_t>(std::min<uint64_t>(blocks, 1U << 30));
  return plan;
}

CpuTail::CpuTail(Deps deps)
    : deps_(std::move(deps)),
      device_(deps_.clock, deps_.on_step),
      mover_(deps_.clock, deps_.on_moved) {}

Result<std::unique_ptr<CpuTail>> CpuTail::create(Deps deps) {
  auto tail = std::unique_ptr<CpuTail>(new CpuTail(std::move(deps)));
  TANDEM_TRY(tail->load());
  return tail;
}

Status CpuTail::load() {
  const CpuTailSettings& settings = deps_.config.cpu_tail;
  TANDEM_ASSIGN(plan_, plan_tail(settings, deps_.model));
  TANDEM_TRY(device_.start([this] { return make_engine(); }));
  TANDEM_ASSIGN(kv_, KvStore::create({.pool = {.layout = plan_.layout,
                                               .blocks = plan_.blocks,
                                               .tails = tails_of(plan_.layout, deps_.tails),
                                               .memory = {}},
                                      .prefix_cache = false},
                                     std::move(memory_)));
  TANDEM_TRY(mover_.start(deps_.device, least_staging(deps_.model.layout, plan_.layout)));
  deps_.log.info("cpu_tail", {{"layout", plan_.layout.describe()},
                              {"blocks", plan_.blocks},
                              {"threads", deps_.threads},
                              {"after_tokens", settings.after_tokens},
                              {"free_below_bytes", plan_.thresholds.free_below},
                              {"return_above_bytes", plan_.thresholds.return_above}});
  return {};
}

// On the tail's device thread. Its steps only decode: a row for each request.
Result<StepFunction> CpuTail::make_engine() {
  engine::CpuOptions options;
  options.threads = deps_.threads;
  options.weights = deps_.model.weights;
  TANDEM_ASSIGN(std::shared_ptr<engine::Ops> ops, engine::create_cpu_ops(options));
  TANDEM_ASSIGN(std::shared_ptr<engine::Engine> engine,
                engine::Engine::create(*deps_.model.checkpoint, *ops,
                                       {.max_rows = deps_.settings.max_sequences,
                                        .max_context = deps_.model.max_context}));
  TANDEM_ASSIGN(PooledEngine pooled,
                give_pool(ops, std::move(engine), plan_.layout, plan_.blocks,
                          tails_of(plan_.layout, deps_.tails), deps_.settings.max_sequences));
  memory_ = std::move(pooled.memory);
  return std::move(pooled.step);
}

void CpuTail::stop() {
  mover_.stop();
  device_.stop();
}

}  // namespace tandem::node
