#include "common/base/exit.h"

#include <cstdio>
#include <string>

namespace tandem {

std::string exit_message(std::string_view program, const Error& error) {
  std::string line(program);
  line += ": ";
  line += error.detail;
  const bool named = error.detail.find(error.param) != std::string::npos;
  if (!named) line += " (" + error.param + ")";
  return line;
}

int exit_code(const Error& error) {
  const bool usage = error.code == ErrorCode::kConfig || error.code == ErrorCode::kInvalidArgument;
  return usage ? kExitUsage : kExitFailure;
}

namespace {

void say(std::string_view program, const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", exit_message(program, error).c_str());
}

}  // namespace

int report_exit(std::string_view program, const Error& error) {
  say(program, error);
  return exit_code(error);
}

int report_start_failure(std::string_view program, const Error& error) {
  say(program, error);
  // A defect may show in one start and not in the next.
  const bool lasting = !error_traits(error.code).retryable && error.code != ErrorCode::kInternal;
  return lasting ? kExitUsage : kExitFailure;
}

}  // namespace tandem
