#pragma once

namespace CLI {
class App;
}

namespace tandem::bench {

// Adds `bench serve` to the command line. The subcommand's callback throws CLI::RuntimeError with
// the exit code (1: could not run or a request failed, 2: usage) after it has printed the reason to
// stderr.
void add_bench_command(CLI::App& app);

}  // namespace tandem::bench
