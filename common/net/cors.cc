#include "common/net/cors.h"

#include <algorithm>

namespace tandem {
namespace {

// What may be repeated to a browser: a list of header names.
bool is_name_list(std::string_view text) {
  constexpr size_t kLongest = 1024;
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

}  // namespace

bool CorsPolicy::allows_all() const {
  return std::find(origins_.begin(), origins_.end(), "*") != origins_.end();
}

bool CorsPolicy::allows(std::string_view origin) const {
  return allows_all() || std::find(origins_.begin(), origins_.end(), origin) != origins_.end();
}

HttpHeaders CorsPolicy::headers_for(const HttpRequest& request) const {
  HttpHeaders headers;
  if (origins_.empty()) return headers;
  const std::string* origin = request.header("origin");
  if (allows_all()) {
    if (origin != nullptr) headers.emplace_back("Access-Control-Allow-Origin", "*");
  } else {
    // The answer depends on who asks, so caches must not mix them up.
    headers.emplace_back("Vary", "Origin");
    if (origin != nullptr && allows(*origin)) {
      headers.emplace_back("Access-Control-Allow-Origin", *origin);
    }
  }
  if (origin != nullptr && allows(*origin)) {
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  }
  return headers;
}

bool CorsPolicy::is_preflight(const HttpRequest& request) const {
  const std::string* origin = request.header("origin");
  return request.method == "OPTIONS" && origin != nullptr && allows(*origin) &&
         request.header("access-control-request-method") != nullptr;
}

HttpResponse CorsPolicy::preflight_response(const HttpRequest& request) const {
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS");
  const std::string* wanted = request.header("access-control-request-headers");
  response.headers.emplace_back("Access-Control-Allow-Headers",
                                wanted != nullptr && is_name_list(*wanted)
                                    ? *wanted
                                    : "authorization, content-type, x-request-id");
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace tandem
