#pragma once

#include <span>

#include "common/base/clock.h"
#include "common/preflight/finding.h"
#include "common/preflight/machine.h"
#include "common/preflight/nodes.h"

// The parts of judge(); each adds what it finds.
namespace tandem::preflight {

// CPUs and threads.
void check_compute(const ClusterConfig& config, std::span<const Node> nodes, const Machine& machine,
                   Findings& out);
// Cards and NVIDIA's libraries.
void check_cards(const ClusterConfig& config, std::span<const Node> nodes, const Machine& machine,
                 Findings& out);
void check_transports(std::span<const Node> nodes, const Machine& machine, Findings& out);
// Log, certificates and keys.
void check_files(const ClusterConfig& config, Findings& out);
// The model, what each node makes of it, and whether that fits into memory.
void check_model(const ClusterConfig& config, std::span<const Node> nodes, const Machine& machine,
                 const Clock& clock, Findings& out);

// One that only warns.
[[nodiscard]] Finding warning(std::string key, std::string reason, std::string remedy);

}  // namespace tandem::preflight
