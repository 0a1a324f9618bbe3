#include "common/preflight/nodes.h"

#include <algorithm>
#include <array>

namespace tandem::preflight {

std::string Node::key(std::string_view param) const {
  constexpr std::array<std::string_view, 4> kOfTheFile{"model.", "kv.", "cpu_tail.", "gpu."};
  const bool of_the_file = std::ranges::any_of(
      kOfTheFile, [&](std::string_view prefix) { return param.starts_with(prefix); });
  return of_the_file ? std::string(param) : section + "." + std::string(param);
}

std::vector<Node> nodes_of(const ClusterConfig& config) {
  std::vector<Node> nodes;
  const auto add = [&](const std::string& role, size_t index, const NodeSettings& node,
                       bool has_tail) {
    nodes.push_back({.section = role + "[" + std::to_string(index) + "]",
                     .settings = &node,
                     .device = parse_device(node.device).value_or(DeviceChoice{}),
                     .is_prefill = role == "prefill",
                     .has_tail = has_tail});
  };
  for (size_t i = 0; i < config.prefill.size(); ++i) add("prefill", i, config.prefill[i], false);
  for (size_t i = 0; i < config.decode.size(); ++i)
    add("decode", i, config.decode[i], has_cpu_tail(config, config.decode[i]));
  return nodes;
}

}  // namespace tandem::preflight
