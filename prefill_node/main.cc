#include <memory>
#include <string>

#include "common/node/node_main.h"
#include "prefill_node/prefill_scheduler.h"

namespace {

using namespace tandem;

prefill::PrefillOptions options_of(const PrefillNodeSettings& s, const node::TaskLimits& limits) {
  prefill::PrefillOptions o;
  o.limits = limits;
  o.max_batch_tokens = s.max_batch_tokens;
  o.chunk_tokens = s.chunk_tokens;
  o.max_sequences = s.max_sequences;
  o.queue_capacity = s.queue;
  return o;
}

Result<node::NodeSpec> spec_of(const ClusterConfig& config, const std::string& name) {
  TANDEM_ASSIGN(const PrefillNodeSettings* section,
                node::pick_section(config.prefill, name, "prefill"));
  return node::NodeSpec{
      .role = control::ROLE_PREFILL,
      .role_name = "prefill",
      .config = config,
      .settings = *section,
      .tails =
          2 * section->max_sequences,  // prompts in work, and as many that are still being sent
      .cpu_tail = false,
      .run_dir = {},
      .version = {},
      .make_scheduler =
          [section](const node::SchedulerDeps& deps) -> std::unique_ptr<node::Scheduler> {
        return std::make_unique<prefill::PrefillScheduler>(
            prefill::PrefillScheduler::Deps{.clock = deps.clock,
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
  return tandem::node::node_main(
      argc, argv,
      {.binary = "tandem-prefill",
       .description = "A prefill node of a Tandem cluster: computes the KV "
                      "cache of prompts and pushes it to decode nodes.",
       .spec = spec_of});
}
