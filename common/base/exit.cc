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
  switch (error.code) {
    case ErrorCode::kConfig:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kPayloadTooLarge:
    // Of what an argument or a key names: a file, a model, a device.
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorruptData:
    case ErrorCode::kMismatch:
      return kExitUsage;
    case ErrorCode::kUnauthenticated:
    case ErrorCode::kMethodNotAllowed:
    case ErrorCode::kRequestTimeout:
    case ErrorCode::kCancelled:
    case ErrorCode::kQueueFull:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kTransport:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:  // a defect may show in one start and not in the next
    case ErrorCode::kDeviceLost:
      return kExitFailure;
  }
  return kExitFailure;
}

int report_exit(std::string_view program, const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", exit_message(program, error).c_str());
  return exit_code(error);
}

}  // namespace tandem
