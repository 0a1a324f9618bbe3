#include "decode_node/decode_main.h"

#include <memory>
#include <optional>
#include <string>

#include "common/node/cpu_tail.h"
#include "decode_node/decode_scheduler.h"

namespace tandem::decode {
namespace {

DecodeOptions options_of(const DecodeNodeSettings& s, const node::SchedulerDeps& deps,
                         const CpuTailSettings& tail) {
  DecodeOptions o;
  o.limits = deps.limits;
  o.max_batch_tokens = s.max_batch_tokens;
  o.max_sequences = s.max_sequences;
  o.queue_capacity = s.queue;
  o.chunk_tokens = s.chunk_tokens;
  o.mixed_target = s.step_budget;
  o.queue_ageing = s.queue_ageing;
  o.default_lease = s.lease;
  if (deps.cpu_tail == nullptr) return o;
  const auto thresholds = deps.cpu_tail->thresholds();
  o.cpu_tail = {.after_tokens = tail.after_tokens,
                .free_below = thresholds.free_below,
                .return_above = thresholds.return_above};
  return o;
}

std::optional<CpuTail> tail_of(node::CpuTail* tail) {
  if (tail == nullptr) return std::nullopt;
  return CpuTail{.lane = {.kv = tail->kv(), .executor = tail->executor()}, .mover = tail->mover()};
}

Result<node::NodeSpec> spec_of(const ClusterConfig& config, const std::string& name) {
  TANDEM_ASSIGN(const DecodeNodeSettings* section,
                node::pick_section(config.decode, name, "decode"));
  return node::NodeSpec{
      .role = control::ROLE_DECODE,
      .role_name = "decode",
      .config = config,
      .settings = *section,
      .tails =
          2 * section->max_sequences,  // requests that generate, and as many that arrive or wait
      .cpu_tail = has_cpu_tail(config, *section),
      .run_dir = {},
      .version = {},
      .make_scheduler = [section, tail = config.cpu_tail](
                            const node::SchedulerDeps& deps) -> std::unique_ptr<node::Scheduler> {
        return std::make_unique<DecodeScheduler>(
            DecodeScheduler::Deps{.clock = deps.clock,
                                  .device = {.kv = deps.kv, .executor = deps.executor},
                                  .tail = tail_of(deps.cpu_tail),
                                  .transport = deps.transport,
                                  .metrics = deps.metrics,
                                  .send = deps.send},
            options_of(*section, deps, tail));
      }};
}

}  // namespace

node::NodeMain decode_main() {
  return {
      .binary = "tandem-decode",
      .description =
          "A decode node of a Tandem cluster: takes the KV cache of prompts and generates their "
          "answers, many at a time.",
      .spec = spec_of};
}

}  // namespace tandem::decode
