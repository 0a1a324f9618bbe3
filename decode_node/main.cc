#include <memory>
#include <string>

#include "common/node/node_main.h"
#include "decode_node/decode_scheduler.h"

namespace {

using namespace tandem;

decode::DecodeOptions options_of(const DecodeNodeSettings& s, const node::TaskLimits& limits) {
  decode::DecodeOptions o;
  o.limits = limits;
  o.max_batch_tokens = s.max_batch_tokens;
  o.max_sequences = s.max_sequences;
  o.queue_capacity = s.queue;
  o.chunk_tokens = s.chunk_tokens;
  o.mixed_target = s.step_budget;
  o.queue_ageing = s.queue_ageing;
  o.default_lease = s.lease;
  return o;
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
      .run_dir = {},
      .version = {},
      .make_scheduler =
          [section](const node::SchedulerDeps& deps) -> std::unique_ptr<node::Scheduler> {
        return std::make_unique<decode::DecodeScheduler>(
            decode::DecodeScheduler::Deps{.clock = deps.clock,
                                          .kv = deps.kv,
                                          .transport = deps.transport,
                                          .executor = deps.executor,
                                          .metrics = deps.metrics,
                                          .send = deps.send},
            options_of(*section, deps.limits));
      }};
}

}  // namespace

int main(int argc, char** argv) {
  return tandem::node::node_main(argc, argv, {.binary = "tandem-decode", .spec = spec_of});
}
