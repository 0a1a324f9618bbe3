#include "common/preflight/ports.h"

#include <span>
#include <string>
#include <vector>

#include "common/config/listen_points.h"
#include "common/net/can_listen.h"

namespace tandem::preflight {

namespace {

Status check_point(const ListenPoint& point, std::span<const ListenPoint> before) {
  for (const ListenPoint& other : before) {
    if (collide(other, point)) {
      return fail(ErrorCode::kConfig, other.section + ".port is the same; give each its own",
                  "port");
    }
  }
  return can_listen(point.host, point.port);
}

}  // namespace

Findings busy_ports(const ClusterConfig& config) {
  Findings findings;
  const std::vector<ListenPoint> points = listen_points(config);
  for (size_t i = 0; i < points.size(); ++i) {
    const ListenPoint& point = points[i];
    const Status free = check_point(point, std::span(points).first(i));
    if (free) continue;
    const Error error = in_section(free.error(), point.section);
    const bool host = error.param.ends_with(".host");
    Finding finding = finding_of(point.section + (host ? ".host" : ".port"), error);
    finding.value = host ? point.host : std::to_string(point.port);
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace tandem::preflight
