#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/net/http_server.h"

namespace tandem {

// A table from paths to handlers, filled before the server starts and only read afterwards (any
// thread). An exact path beats a prefix, a longer prefix a shorter one. HEAD goes to GET's handler
// (the server leaves the body out). Unknown paths get 404, known ones with another method 405 with
// Allow, OPTIONS a 204 with Allow.
class HttpRouter {
 public:
  // "/v1/models"
  void exact(std::string method, std::string path, HttpHandler handler);
  // "/v1/models/" : every longer path
  void prefix(std::string method, std::string path, HttpHandler handler);

  // Answers by itself only where no handler is found; the answer's status is returned then, else 0.
  int handle(HttpRequest request, HttpResponder responder) const;

 private:
  struct Route {
    std::string method;
    std::string path;
    bool is_prefix;
    HttpHandler handler;
  };
  void add(Route route);
  std::vector<Route> routes_;  // by falling precedence
};

}  // namespace tandem
