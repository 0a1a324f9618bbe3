#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/cluster_config.h"
#include "common/config/units.h"

namespace tandem::preflight {

// A node of a file, its key there ("decode[0]") and its device.
struct Node {
  std::string section;
  const NodeSettings* settings = nullptr;
  DeviceChoice device;
  bool is_prefill = false;
  bool has_tail = false;  // a CPU engine beside its device

  // The key that a role's error names: in this node's section ("cpus"), or one of the whole file
  // ("kv.memory").
  [[nodiscard]] std::string key(std::string_view param) const;
};

// Of both roles, in the file's order. The file is valid: every device can be parsed.
[[nodiscard]] std::vector<Node> nodes_of(const ClusterConfig& config);

}  // namespace tandem::preflight
