#pragma once

#include <string>
#include <vector>

#include "common/base/error.h"

namespace tandem::preflight {

// What of a cluster file cannot work on this machine, or less well than the file asks for.
struct Finding {
  bool refuses = true;  // a role would not start; else it starts, and this is worth knowing
  ErrorCode code = ErrorCode::kConfig;
  std::string key;     // "decode[0].cpus"; the key to change
  std::string value;   // what the file says there, or its default
  std::string reason;  // why that does not work here
  std::string remedy;  // what to do
};
using Findings = std::vector<Finding>;

// "decode[0].cpus: 77: there is no CPU 77: …"
[[nodiscard]] std::string to_string(const Finding& finding);

}  // namespace tandem::preflight
