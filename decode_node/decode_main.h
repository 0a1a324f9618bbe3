#pragma once

#include "common/node/node_main.h"

namespace tandem::decode {

// What makes a process a decode node.
[[nodiscard]] node::NodeMain decode_main();

}  // namespace tandem::decode
