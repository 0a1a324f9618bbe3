#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/run_dir/run_dir.h"
#include "tools/supervise/node_report.h"

namespace tandem::supervise {

// One process of a box, as its supervisor and it itself tell.
struct ProcessStatus {
  rundir::ProcessState process;
  std::string url;                   // where it answers; empty: not told yet
  std::optional<NodeReport> report;  // a node's own words; empty: a router, or no answer
};

// What runs from a run directory. Asks each node, which takes up to 2 s for one that hangs.
struct BoxStatus {
  std::string run_dir;
  std::string config;  // the cluster file
  std::vector<ProcessStatus> processes;

  // Every process is up, and every node registered.
  [[nodiscard]] bool ready() const;
};
[[nodiscard]] BoxStatus box_status(const std::string& run_dir,
                                   const rundir::SupervisorState& state);

// For people: a line for each process. For programs: one JSON object.
[[nodiscard]] std::string render_text(const BoxStatus& box);
[[nodiscard]] std::string render_json(const BoxStatus& box);

}  // namespace tandem::supervise
