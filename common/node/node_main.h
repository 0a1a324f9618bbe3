#pragma once

#include <functional>
#include <string>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/node/node_process.h"

namespace tandem::node {

// What makes a binary a prefill or a decode node.
struct NodeMain {
  std::string binary;       // "tandem-prefill"
  std::string description;  // what it does, for --help
  // The section of node `name` turned into a spec (role, role_name, settings, tails,
  // make_scheduler); an empty name means the only one there is. kConfig when there is none.
  std::function<Result<NodeSpec>(const ClusterConfig& config, const std::string& name)> spec;
};

// main() of both: flags, configuration, signals. SIGTERM and SIGINT drain, a second one ends at
// once. Exit codes: 0 ok, 1 failure, 2 usage or configuration error.
[[nodiscard]] int node_main(int argc, char** argv, const NodeMain& main);

// Picks a node's section by name; an empty name needs exactly one section.
template <typename Settings>
[[nodiscard]] Result<const Settings*> pick_section(const std::vector<Settings>& sections,
                                                   const std::string& name, const char* kind) {
  if (name.empty() && sections.size() == 1) return &sections.front();
  std::string known;
  for (const auto& section : sections) {
    if (section.name == name) return &section;
    known += (known.empty() ? "" : ", ") + section.name;
  }
  if (known.empty()) known = "none";
  return fail(ErrorCode::kConfig, name.empty() ? std::string("--name is needed; the file's ") +
                                                     kind + " nodes: " + known
                                               : std::string("the file has no ") + kind +
                                                     " node '" + name + "'; it has: " + known);
}

}  // namespace tandem::node
