#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// Whether two of them cannot be open at once: one port, and hosts that are equal or take every
// address.
[[nodiscard]] bool collide(const ListenPoint& a, const ListenPoint& b);

}  // namespace tandem
