#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/net/async_http_client.h"

namespace tandem {

struct HttpReply {
  int status = 0;
  HttpHeaders headers;
  std::string body;  // empty where it was handed out in pieces
};

// One request after the other to one server, waiting for each: command-line tools and tests. Owns a
// loop and its thread; the connection is kept between requests. One caller at a time.
class HttpClient {
 public:
  // Errors as AsyncHttpClient::create.
  [[nodiscard]] static Result<std::unique_ptr<HttpClient>> create(const std::string& url,
                                                                  AsyncHttpOptions options = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Waits for the whole answer, whatever its status. Errors: kTransport, kDeadlineExceeded, and
  // kPayloadTooLarge for a body over kMaxBody.
  [[nodiscard]] Result<HttpReply> request(HttpCall call);
  // The same, but hands the body of a 200 out as it comes, on the loop's thread. `cancelled`, if
  // there is one, is asked ten times a second: true cuts the request (kCancelled).
  [[nodiscard]] Result<HttpReply> stream(HttpCall call,
                                         std::function<void(std::string_view bytes)> on_data,
                                         const std::function<bool()>& cancelled = {});

  static constexpr size_t kMaxBody = 256u << 20;

 private:
  HttpClient(std::string url, AsyncHttpOptions options);
  Status connect();
  void cut();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
