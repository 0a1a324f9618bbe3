#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace tandem {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;      // "GET", as sent
  std::string path;        // percent-decoded, without the query: "/v1/models/org/name v1"
  std::string query;       // as sent, without the question mark
  HttpHeaders headers;     // as sent
  std::string body;        // whole, chunking removed
  std::string remote;      // "127.0.0.1:50312"
  std::string request_id;  // the client's X-Request-Id if it is a decent one, else a new one
  TimePoint received;      // when its first byte came

  // The value of the first header of that name, in any case; null if absent.
  [[nodiscard]] const std::string* header(std::string_view name) const;
  // The percent-decoded value of `name` in the query.
  [[nodiscard]] std::optional<std::string> query_parameter(std::string_view name) const;
};

// Content-Length, Connection, Date and X-Request-Id are added by the server.
struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  std::string body;
};

// {"error":{"message":…,"type":…,"param":…|null,"code":…}}. `code` overrides the error table's
// label.
[[nodiscard]] std::string openai_error_body(const Error& error, std::string_view code = {});
// The same with the status of the error table and, for 429 and 503, Retry-After.
[[nodiscard]] HttpResponse error_response(const Error& error);

[[nodiscard]] std::string_view reason_phrase(int status);

// Undoes %XX; nullopt for a broken escape. '+' stays '+' (it means a space in forms only).
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view text);
[[nodiscard]] bool equal_ignoring_case(std::string_view a, std::string_view b);

// Why an answer cannot be delivered any more.
enum class ClientLoss : uint8_t {
  kLeft,         // the connection is gone, or the client has shut its sending side
  kDoesNotRead,  // the answer could not be written within the limit
  kCut,          // the server stops
};

}  // namespace tandem
