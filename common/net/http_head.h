#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/net/http_message.h"

namespace tandem {

// Splits and decodes a request target into request.path and request.query. False for one that
// nobody should have sent (broken escapes, control characters, no path).
[[nodiscard]] bool parse_target(std::string_view target, HttpRequest& request);

// What is wrong with the headers that say where a request ends, as the answer to give. Whatever
// could make two readers of the same bytes see two different requests is refused.
struct FramingFault {
  int status = 400;
  const char* why = "";
};
[[nodiscard]] std::optional<FramingFault> framing_fault(const HttpRequest& request, bool http10);

// Whether a client's X-Request-Id is fit for logs and headers.
[[nodiscard]] bool is_request_id(std::string_view id);
[[nodiscard]] std::string new_request_id();

struct HeadOptions {
  bool chunked = false;
  bool keep_alive = true;
  bool http10 = false;
  bool has_length = true;  // whether content_length is sent
  size_t content_length = 0;
  std::string_view date_line;
  std::string_view request_id;
};
// The status line and headers of an answer, to the empty line. Header values cannot break out:
// control characters become spaces.
[[nodiscard]] std::string build_head(const HttpResponse& response, const HttpHeaders& more,
                                     const HeadOptions& options);

}  // namespace tandem
