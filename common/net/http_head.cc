#include "common/net/http_head.h"

#include <algorithm>

#include "common/base/utf8.h"
#include "common/net/gate.h"

namespace tandem {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

void append_header(std::string& out, std::string_view name, std::string_view value) {
  const size_t start = out.size();
  out += name;
  out += ": ";
  out += value;
  std::replace_if(out.begin() + static_cast<std::ptrdiff_t>(start), out.end(), is_control, ' ');
  out += "\r\n";
}

}  // namespace

bool parse_target(std::string_view target, HttpRequest& request) {
  if (target == "*") {
    request.path = "*";
    return request.method == "OPTIONS";
  }
  // Absolute form, as proxies get it (RFC 9112 section 3.2.2).
  if (!target.starts_with('/')) {
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return false;
    const std::string_view name = target.substr(0, scheme);
    if (!equal_ignoring_case(name, "http") && !equal_ignoring_case(name, "https")) return false;
    target.remove_prefix(scheme + 3);
    const size_t end = target.find_first_of("/?");
    if (end == 0) return false;
    target = end == std::string_view::npos ? std::string_view("/") : target.substr(end);
  }
  if (target.find('#') != std::string_view::npos) return false;
  const size_t question = std::min(target.find('?'), target.size());
  request.query = target.substr(std::min(question + 1, target.size()));
  const auto path = percent_decode(target.substr(0, question));
  if (!path || std::any_of(path->begin(), path->end(), is_control) || !is_valid_utf8(*path)) {
    return false;
  }
  request.path = path->empty() ? "/" : *path;
  return true;
}

std::optional<FramingFault> framing_fault(const HttpRequest& request, bool http10) {
  const auto count = [&](std::string_view name) {
    return std::count_if(request.headers.begin(), request.headers.end(),
                         [&](const auto& field) { return equal_ignoring_case(field.first, name); });
  };
  const auto hosts = count("host");
  const auto lengths = count("content-length");
  const auto codings = count("transfer-encoding");
  if (hosts > 1 || (hosts == 0 && !http10))
    return FramingFault{400, "a request has exactly one Host header"};
  if (lengths > 1) return FramingFault{400, "a request has at most one Content-Length header"};
  if (lengths > 0 && codings > 0)
    return FramingFault{400, "Content-Length and Transfer-Encoding exclude each other"};
  if (codings > 0) {
    if (http10) return FramingFault{400, "HTTP/1.0 has no Transfer-Encoding"};
    if (codings > 1 || !equal_ignoring_case(*request.header("transfer-encoding"), "chunked"))
      return FramingFault{501, "the only Transfer-Encoding known is chunked"};
  }
  const std::string* coding = request.header("content-encoding");
  if (coding != nullptr && !equal_ignoring_case(*coding, "identity"))
    return FramingFault{415, "request bodies must not be compressed (Content-Encoding)"};
  return std::nullopt;
}

bool is_request_id(std::string_view id) {
  constexpr size_t kLongest = 128;
  return !id.empty() && id.size() <= kLongest && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::string new_request_id() { return "req-" + random_hex(8); }

std::string build_head(const HttpResponse& response, const HttpHeaders& more,
                       const HeadOptions& options) {
  std::string out;
  out.reserve(384);
  out += "HTTP/1.1 ";
  out += std::to_string(response.status);
  out += ' ';
  out += reason_phrase(response.status);
  out += "\r\nServer: tandem\r\n";
  out += options.date_line;
  const bool bodiless = response.status == 204 || response.status == 304;
  if (!bodiless) append_header(out, "Content-Type", response.content_type);
  if (options.chunked) {
    out += "Transfer-Encoding: chunked\r\n";
  } else if (options.has_length && !bodiless) {
    out += "Content-Length: " + std::to_string(options.content_length) + "\r\n";
  }
  if (!options.request_id.empty()) append_header(out, "X-Request-Id", options.request_id);
  for (const auto& [name, value] : response.headers) append_header(out, name, value);
  for (const auto& [name, value] : more) append_header(out, name, value);
  if (!options.keep_alive) {
    out += "Connection: close\r\n";
  } else if (options.http10) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  return out;
}

}  // namespace tandem
