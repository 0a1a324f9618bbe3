#include "common/base/exit.h"

#include <cstdio>
#include <string>

namespace tandem {

int report_exit(std::string_view program, const Error& error) {
  std::string line(program);
  line += ": ";
  line += error.detail;
  if (!error.param.empty()) line += " (" + error.param + ")";
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", line.c_str());
  const bool usage = error.code == ErrorCode::kConfig || error.code == ErrorCode::kInvalidArgument;
  return usage ? kExitUsage : kExitFailure;
}

}  // namespace tandem
