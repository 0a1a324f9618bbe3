#include "common/base/exit.h"

#include <cstdio>
#include <string>

namespace tandem {

namespace {

void say(std::string_view program, const Error& error) {
  std::string line(program);
  line += ": ";
  line += error.detail;
  const bool named = error.detail.find(error.param) != std::string::npos;
  if (!named) line += " (" + error.param + ")";
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace

int report_exit(std::string_view program, const Error& error) {
  say(program, error);
  const bool usage = error.code == ErrorCode::kConfig || error.code == ErrorCode::kInvalidArgument;
  return usage ? kExitUsage : kExitFailure;
}

int report_start_failure(std::string_view program, const Error& error) {
  say(program, error);
  // A defect may show in one start and not in the next.
  const bool lasting = !error_traits(error.code).retryable && error.code != ErrorCode::kInternal;
  return lasting ? kExitUsage : kExitFailure;
}

}  // namespace tandem
