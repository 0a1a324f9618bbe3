#pragma once

#include "common/config/environment.h"

namespace CLI {
class App;
}

namespace tandem::bench {

// Adds `bench serve` to the command line. The subcommand's callback throws CLI::RuntimeError with
// the exit code (1: could not run, was interrupted or no request was answered, 2: usage) after it
// has printed the reason to stderr. `environment` outlives the parsing.
void add_bench_command(CLI::App& app, const Environment& environment);

}  // namespace tandem::bench
