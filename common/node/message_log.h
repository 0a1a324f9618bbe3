#pragma once

#include "common/obs/log.h"
#include "common/proto/control.pb.h"

namespace tandem::node {

// Writes what a node tells the router as log lines with request and transfer ids: failures and
// refusals, the end of each request on this node, and the way there at debug level. Never a token
// or a prompt.
void log_message(const Logger& log, const control::ToRouter& message);

}  // namespace tandem::node
