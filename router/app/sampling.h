#pragma once

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/obs/log.h"
#include "router/api/request.h"

namespace tandem::model {
class Checkpoint;
}

namespace tandem::router {

// What requests get that do not say: the file's values, else those of the model unless the file
// says otherwise. Logs them with where they come from. kConfig for a model whose values make no
// sense.
[[nodiscard]] Result<SamplingDefaults> sampling_defaults(const SamplingSettings& settings,
                                                         const model::Checkpoint& checkpoint,
                                                         const Logger& log);

}  // namespace tandem::router
