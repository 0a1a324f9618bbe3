#include "common/net/http_router.h"

#include <algorithm>

namespace tandem {

void HttpRouter::exact(std::string method, std::string path, HttpHandler handler) {
  add({std::move(method), std::move(path), false, std::move(handler)});
}

void HttpRouter::prefix(std::string method, std::string path, HttpHandler handler) {
  add({std::move(method), std::move(path), true, std::move(handler)});
}

void HttpRouter::add(Route route) {
  const auto precedes = [](const Route& a, const Route& b) {
    if (a.is_prefix != b.is_prefix) return !a.is_prefix;
    return a.path.size() > b.path.size();
  };
  const auto at = std::upper_bound(routes_.begin(), routes_.end(), route, precedes);
  routes_.insert(at, std::move(route));
}

int HttpRouter::handle(HttpRequest request, HttpResponder responder) const {
  const std::string_view method =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  const Route* found_path = nullptr;
  for (const Route& route : routes_) {
    const bool matches = route.is_prefix ? request.path.size() > route.path.size() &&
                                               request.path.starts_with(route.path)
                                         : request.path == route.path;
    // Only the most precise path counts: its methods are what Allow names.
    if (!matches || (found_path != nullptr && (route.path != found_path->path ||
                                               route.is_prefix != found_path->is_prefix))) {
      continue;
    }
    found_path = &route;
    if (route.method == method) {
      route.handler(std::move(request), std::move(responder));
      return 0;
    }
    allowed +=
        (allowed.empty() ? "" : ", ") + route.method + (route.method == "GET" ? ", HEAD" : "");
  }
  HttpResponse response;
  if (request.method == "OPTIONS" && (found_path != nullptr || request.path == "*")) {
    response.status = 204;
    response.headers.emplace_back(
        "Allow", found_path == nullptr ? "GET, HEAD, POST, OPTIONS" : allowed + ", OPTIONS");
  } else if (found_path != nullptr) {
    response = error_response(make_error(ErrorCode::kMethodNotAllowed,
                                         request.method + " is not allowed for " + request.path +
                                             "; allowed are " + allowed + ", OPTIONS"));
    response.headers.emplace_back("Allow", allowed + ", OPTIONS");
  } else {
    response = error_response(make_error(
        ErrorCode::kNotFound, "there is nothing at " + request.path + "; the API is below /v1"));
  }
  const int status = response.status;
  responder.respond(std::move(response));
  return status;
}

}  // namespace tandem
