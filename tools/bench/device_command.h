#pragma once

namespace CLI {
class App;
}

namespace tandem::bench {

// `tandem bench kernels`: what this machine's card does, not a running cluster.
void add_device_commands(CLI::App& bench);

}  // namespace tandem::bench
