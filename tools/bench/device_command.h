#pragma once

#include <string>
#include <vector>

#include "common/config/environment.h"

namespace CLI {
class App;
}

namespace tandem::bench {

// `tandem bench kernels`, `step` and `transfer`: what this machine does, not a running cluster.
void add_device_commands(CLI::App& bench, const Environment& environment);

// What `bench transfer` measures unless told otherwise: what can move KV between these two places
// (a card's index; -1: host memory).
[[nodiscard]] std::vector<std::string> default_transports(int from, int to);

}  // namespace tandem::bench
