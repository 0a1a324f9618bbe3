#pragma once

#include <span>
#include <string>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "tools/doctor/report.h"

namespace tandem::doctor {

// Looks at this machine. Takes about a second where there are cards; makes no CUDA context and
// leaves nothing behind. `config` may be null.
[[nodiscard]] Report collect(const ClusterConfig* config, std::span<const std::string> libraries,
                             const std::string& version);

}  // namespace tandem::doctor
