#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace tandem::preflight {

// What of a cluster file cannot work on this machine, or less well than the file asks for.
struct Finding {
  bool refuses = true;      // a role would not start; else it starts, and this is worth knowing
  std::string origin = {};  // "cluster.yaml:12"; empty until judge() knows
  std::string key = {};     // "decode[0].cpus": the one to change
  std::string value = {};   // as it stands in the file, or the default
  std::string reason = {};  // why that does not work here
  std::string remedy = {};  // what to do
};
using Findings = std::vector<Finding>;

// Of a role's own error, whose detail puts what to do behind a semicolon. A path that holds one is
// divided there instead: to_string() joins the two again.
[[nodiscard]] Finding finding_of(std::string key, const Error& error);

// "cluster.yaml:12: decode[0].cpus: [77]: no compute thread can be pinned to CPU 77; this process
// may use 0-1"
[[nodiscard]] std::string to_string(const Finding& finding);

// kConfig with those that refuse, one a line, or nothing when none does.
[[nodiscard]] Status refusal(const Findings& findings);

}  // namespace tandem::preflight
