#pragma once

#include "common/config/cluster_config.h"
#include "common/preflight/finding.h"

namespace tandem::preflight {

// The ports of a cluster file that cannot be listened on now: another process does, another role of
// the file does, the address is not this machine's, or the right is missing. Each finding names the
// key and the variable that sets it. Binds each port for a moment; what is free now may be taken
// later.
[[nodiscard]] Findings busy_ports(const ClusterConfig& config);

}  // namespace tandem::preflight
