#include "common/base/error.h"

#include <utility>

#include "common/base/check.h"

namespace tandem {

const ErrorTraits& error_traits(ErrorCode code) {
  static constexpr std::string_view kRequest = "invalid_request_error";
  static constexpr std::string_view kServer = "server_error";
  static constexpr ErrorTraits kInvalidArgument{400, false, "invalid_argument", kRequest};
  static constexpr ErrorTraits kUnauthenticated{401, false, "invalid_api_key", kRequest};
  static constexpr ErrorTraits kNotFound{404, false, "not_found", kRequest};
  static constexpr ErrorTraits kMethodNotAllowed{405, false, "method_not_allowed", kRequest};
  static constexpr ErrorTraits kPayloadTooLarge{413, false, "payload_too_large", kRequest};
  static constexpr ErrorTraits kRequestTimeout{408, false, "request_timeout", kRequest};
  static constexpr ErrorTraits kCancelled{499, false, "cancelled", kRequest};
  static constexpr ErrorTraits kQueueFull{429, true, "queue_full", "rate_limit_error"};
  static constexpr ErrorTraits kDeadlineExceeded{503, true, "deadline_exceeded", kServer};
  static constexpr ErrorTraits kUnavailable{503, true, "unavailable", kServer};
  static constexpr ErrorTraits kResourceExhausted{503, true, "resource_exhausted", kServer};
  static constexpr ErrorTraits kUnsupported{400, false, "unsupported", kRequest};
  static constexpr ErrorTraits kCorruptData{500, false, "corrupt_data", kServer};
  static constexpr ErrorTraits kMismatch{500, false, "mismatch", kServer};
  static constexpr ErrorTraits kTransport{502, true, "transport", kServer};
  static constexpr ErrorTraits kIo{500, true, "io", kServer};
  static constexpr ErrorTraits kConfig{500, false, "config", kServer};
  static constexpr ErrorTraits kInternal{500, false, "internal", kServer};
  static constexpr ErrorTraits kDeviceLost{500, true, "device_lost", kServer};
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return kInvalidArgument;
    case ErrorCode::kUnauthenticated:
      return kUnauthenticated;
    case ErrorCode::kNotFound:
      return kNotFound;
    case ErrorCode::kMethodNotAllowed:
      return kMethodNotAllowed;
    case ErrorCode::kPayloadTooLarge:
      return kPayloadTooLarge;
    case ErrorCode::kRequestTimeout:
      return kRequestTimeout;
    case ErrorCode::kCancelled:
      return kCancelled;
    case ErrorCode::kQueueFull:
      return kQueueFull;
    case ErrorCode::kDeadlineExceeded:
      return kDeadlineExceeded;
    case ErrorCode::kUnavailable:
      return kUnavailable;
    case ErrorCode::kResourceExhausted:
      return kResourceExhausted;
    case ErrorCode::kUnsupported:
      return kUnsupported;
    case ErrorCode::kCorruptData:
      return kCorruptData;
    case ErrorCode::kMismatch:
      return kMismatch;
    case ErrorCode::kTransport:
      return kTransport;
    case ErrorCode::kIo:
      return kIo;
    case ErrorCode::kConfig:
      return kConfig;
    case ErrorCode::kInternal:
      return kInternal;
    case ErrorCode::kDeviceLost:
      return kDeviceLost;
  }
  TANDEM_CHECK(false, "error code outside its enumeration");
  return kInternal;
}

std::string Error::to_string() const {
  std::string text(error_traits(code).label);
  text += ": ";
  text += detail;
  if (!param.empty()) text += " (" + param + ")";
  return text;
}

Error make_error(ErrorCode code, std::string detail, std::string param,
                 std::source_location location) {
  return Error{code, std::move(detail), std::move(param), location};
}

}  // namespace tandem
