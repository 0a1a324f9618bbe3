#pragma once

#include "common/base/clock.h"
#include "common/config/config.h"
#include "common/preflight/finding.h"
#include "common/preflight/machine.h"

namespace tandem::preflight {

enum class Ports : uint8_t {
  kMustBeFree,
  kOurs,  // the file's own cluster runs and holds them
};

// Everything of a cluster file that a role would refuse at its start on this machine, and what
// works less well there than the file asks for. Opens the model and its tokenizer, the files that
// the file names and, for a moment, its ports; starts nothing and leaves nothing behind.
[[nodiscard]] Findings judge(const ClusterFile& file, const Machine& machine, const Clock& clock,
                             Ports ports = Ports::kMustBeFree);

}  // namespace tandem::preflight
