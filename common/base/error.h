#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace tandem {

// What went wrong, in terms a caller can act on. `error_traits` maps each code to its HTTP status,
// whether a retry elsewhere can help, and its metric label; nothing else in the tree does.
enum class ErrorCode : uint8_t {
  kInvalidArgument,    // the request, a flag or a field is wrong: repeating it cannot help
  kUnauthenticated,    // no or wrong credentials
  kNotFound,           // unknown model, path, request or peer
  kMethodNotAllowed,   // known path, wrong HTTP method
  kPayloadTooLarge,    // body, header, prompt or frame over its stated limit
  kRequestTimeout,     // the client was too slow in sending
  kCancelled,          // the client left, or an operator cancelled
  kQueueFull,          // backpressure: a bounded queue is full
  kDeadlineExceeded,   // a bounded wait ran out
  kUnavailable,        // no node can take it now
  kResourceExhausted,  // memory, KV blocks, file descriptors
  kUnsupported,        // valid, but not something this build or model does
  kCorruptData,        // a file or frame contradicts itself or its checksum
  kMismatch,           // two sides disagree (handshake, config against weights)
  kTransport,          // the wire or the peer failed
  kIo,                 // the operating system refused a file or socket operation
  kConfig,             // a configuration file or flag is wrong: refuse to start
  kInternal,           // a defect of this program
  kDeviceLost,         // an accelerator is unusable until the process restarts
};
inline constexpr ErrorCode kLastErrorCode = ErrorCode::kDeviceLost;

struct ErrorTraits {
  int http_status;         // status for an HTTP client
  bool retryable;          // another node or a later attempt may succeed
  std::string_view label;  // metric label and OpenAI `code`, snake_case
  std::string_view type;   // OpenAI `type`
};

[[nodiscard]] const ErrorTraits& error_traits(ErrorCode code);

// An error says what was wrong, where (file, line, field) and what to do, in `detail`.
// `param` names the request or config field at fault, if one is. `location` is the C++ origin, for
// logs.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string detail;
  std::string param;
  std::source_location location;

  // "invalid_argument: max_tokens must be at least 1 (max_tokens)"
  [[nodiscard]] std::string to_string() const;
};

[[nodiscard]] Error make_error(ErrorCode code, std::string detail, std::string param = {},
                               std::source_location location = std::source_location::current());

}  // namespace tandem
