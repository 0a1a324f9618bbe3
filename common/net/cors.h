#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/net/http_message.h"

namespace tandem {

// Which web pages may read answers, as in the Fetch standard. No credentials are involved: keys
// travel in a header that a page must set itself. Immutable; any thread.
class CorsPolicy {
 public:
  // "*" for any origin; an empty list turns CORS off.
  explicit CorsPolicy(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // The headers that every answer to `request` carries, errors included.
  [[nodiscard]] HttpHeaders headers_for(const HttpRequest& request) const;
  // Whether this is a preflight of an origin that is let in; browsers send no credentials with it,
  // so it is answered before any key is asked for.
  [[nodiscard]] bool is_preflight(const HttpRequest& request) const;
  // The answer to it, without headers_for().
  [[nodiscard]] HttpResponse preflight_response(const HttpRequest& request) const;

 private:
  [[nodiscard]] bool allows(std::string_view origin) const;
  [[nodiscard]] bool allows_all() const;
  std::vector<std::string> origins_;
};

}  // namespace tandem
