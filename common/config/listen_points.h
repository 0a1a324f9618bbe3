#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/config/cluster_config.h"

namespace tandem {

// A socket that some role of a file listens on.
struct ListenPoint {
  std::string section;  // "router.http"; its keys are section + ".host" and section + ".port"
  std::string host;
  uint16_t port = 0;  // 0: any free one
};

// Of every role that this file starts, in the order in which `tandem up` starts them.
[[nodiscard]] std::vector<ListenPoint> listen_points(const ClusterConfig& config);

// The section of a node's metrics endpoint.
[[nodiscard]] std::string metrics_section(const ClusterConfig& config, const NodeSettings& node);

// What listen_on() (common/net/listen.h) says, with the key and the variable that choose the
// address. Other errors stay as they are.
[[nodiscard]] Error in_section(Error error, std::string_view section);

// Whether two of them cannot be open at once: one port, and hosts that are equal or take every
// address.
[[nodiscard]] bool collide(const ListenPoint& a, const ListenPoint& b);

}  // namespace tandem
