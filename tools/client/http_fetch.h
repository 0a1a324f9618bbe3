#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace tandem::client {

struct FetchOptions {
  std::string url;                              // http://host:port or https://host:port
  std::string api_key;                          // empty: none
  Duration timeout = std::chrono::seconds(10);  // connect, and silence of the server
  bool verify_certificate = true;
};

struct FetchResult {
  int status = 0;
  std::string body;
};

// Requests to one server, one after the other, each waited for. Owned and called by one thread; an
// IoThread inside does the work. Destroying it cuts what is open.
class HttpFetcher {
 public:
  [[nodiscard]] static Result<std::unique_ptr<HttpFetcher>> create(const FetchOptions& options);
  ~HttpFetcher();

  [[nodiscard]] Result<FetchResult> get(std::string_view target);
  // `on_data` is called on the inner thread with each piece of a 200's body; bodies of other
  // statuses are returned. `cancelled` is asked ten times a second: true cuts the request
  // (kCancelled).
  [[nodiscard]] Result<FetchResult> post_json(std::string_view target, std::string body,
                                              std::function<void(std::string_view)> on_data,
                                              const std::function<bool()>& cancelled);

 private:
  struct State;
  explicit HttpFetcher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// "http://127.0.0.1:8000" of a listening address; wildcard hosts become the loopback's.
[[nodiscard]] std::string url_of(std::string_view address, bool tls);

}  // namespace tandem::client
