#include "common/preflight/ports.h"

#include <string>

#include "common/config/environment.h"
#include "common/config/listen_points.h"
#include "common/net/can_listen.h"

namespace tandem::preflight {

Findings busy_ports(const ClusterConfig& config) {
  Findings findings;
  for (const ListenPoint& point : listen_points(config)) {
    const Status free = can_listen(point.host, point.port);
    if (free) continue;
    const bool host = free.error().code == ErrorCode::kConfig;
    const std::string key = point.section + (host ? ".host" : ".port");
    findings.push_back({.code = free.error().code,
                        .key = key,
                        .value = host ? point.host : std::to_string(point.port),
                        .reason = free.error().detail,
                        .remedy = "change it in the file or set " + environment_name(key)});
  }
  return findings;
}

}  // namespace tandem::preflight
