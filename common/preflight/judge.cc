#include "common/preflight/judge.h"

#include <utility>

#include "common/preflight/ports.h"
#include "common/preflight/rules.h"

namespace tandem::preflight {

Finding warning(std::string key, std::string reason, std::string remedy) {
  return {.refuses = false,
          .origin = {},
          .key = std::move(key),
          .value = {},
          .reason = std::move(reason),
          .remedy = std::move(remedy)};
}

Findings judge(const ClusterFile& file, const Machine& machine, const Clock& clock, Ports ports) {
  const ClusterConfig& config = file.config;
  const std::vector<Node> nodes = nodes_of(config);
  Findings findings;
  check_model(config, nodes, machine, clock, findings);
  check_cards(config, nodes, machine, findings);
  check_compute(config, nodes, machine, findings);
  check_transports(nodes, machine, findings);
  check_files(config, findings);
  if (ports == Ports::kMustBeFree) {
    for (Finding& busy : busy_ports(config)) findings.push_back(std::move(busy));
  }
  const auto values = spell_values(config);
  for (Finding& finding : findings) {
    finding.origin = file.origin(finding.key);
    const auto value = values.find(finding.key);
    if (finding.value.empty() && value != values.end()) finding.value = value->second;
  }
  return findings;
}

}  // namespace tandem::preflight
