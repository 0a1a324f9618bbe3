#include <algorithm>
#include <map>

#include "common/engine/cpu/thread_pool.h"
#include "common/node/node_model.h"
#include "common/preflight/rules.h"

namespace tandem::preflight {
namespace {

// `threads`: that the node starts, be they the key's or automatic.
void check_threads(uint32_t threads, const std::string& key, const Machine& machine,
                   Findings& out) {
  if (const Status can = engine::check_thread_count(threads, machine.threads); !can) {
    out.push_back(finding_of(key, can.error()));
    return;
  }
  if (threads <= machine.cpus) return;
  out.push_back(warning(key,
                        "more compute threads than the " + std::to_string(machine.cpus) +
                            " CPUs that this process may use: they take turns",
                        "use " + std::to_string(machine.cpus) + " or fewer"));
}

}  // namespace

void check_compute(const ClusterConfig& config, std::span<const Node> nodes, const Machine& machine,
                   Findings& out) {
  std::map<uint32_t, const Node*> pinned;
  for (const Node& node : nodes) {
    const NodeSettings& settings = *node.settings;
    if (node.has_tail &&
        std::ranges::none_of(out, [](const Finding& f) { return f.key == "cpu_tail.threads"; })) {
      check_threads(node::tail_threads(config, settings, machine.cpus), "cpu_tail.threads", machine,
                    out);
    }
    if (node.device.cuda) continue;  // computes elsewhere
    const bool by_cpus = settings.threads == 0 && !settings.cpus.empty();
    check_threads(node::compute_threads(config, settings, machine.cpus),
                  node.key(by_cpus ? "cpus" : "threads"), machine, out);
    for (const uint32_t cpu : node.settings->cpus) {
      if (const Status can = machine.can_pin(cpu); !can) {
        out.push_back(finding_of(node.key("cpus"), can.error()));
        continue;
      }
      const auto [other, first] = pinned.emplace(cpu, &node);
      if (first) continue;
      out.push_back(warning(
          node.key("cpus"),
          "CPU " + std::to_string(cpu) + " computes for " + other->second->settings->name + " too",
          "pin only CPUs that nothing else computes on"));
    }
  }
}

}  // namespace tandem::preflight
