#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/http_message.h"

namespace tandem {

class IoThread;

struct AsyncHttpOptions {
  Duration connect_timeout = std::chrono::seconds(5);
  Duration silence_timeout = std::chrono::seconds(300);  // no byte of the response for that long
  bool verify_certificate = true;                        // https only
  size_t max_idle_connections = 1024;
};

struct HttpCall {
  std::string method = "GET";
  std::string target = "/";
  HttpHeaders headers;
  std::string body;
};

// Called on the loop's thread: on_head at most once, on_data any number of times, on_end exactly
// once.
struct HttpCallEvents {
  std::function<void(int status, const HttpHeaders& headers)> on_head;
  std::function<void(std::string_view bytes)> on_data;
  // Success: the whole body came, whatever its status. kUnauthenticated: the server's certificate
  // is not trusted.
  std::function<void(Status outcome)> on_end;
};

// Sends many requests to one server at once over HTTP/1.1 and hands their bodies on as they come.
// Connections are kept alive and reused; a request that meets a connection the server has just
// closed is sent once more on a fresh one. Lives on `io`'s thread, like everything that is bound to
// it.
class AsyncHttpClient {
 public:
  // `url` is http://host:port or https://host:port, an optional path is put in front of every
  // target. The name is resolved here. Errors: kInvalidArgument for the URL, kIo for the name.
  [[nodiscard]] static Result<std::unique_ptr<AsyncHttpClient>> create(IoThread& io,
                                                                       const std::string& url,
                                                                       AsyncHttpOptions options);
  virtual ~AsyncHttpClient() = default;  // cuts what is open; no event follows

  virtual void send(HttpCall call, HttpCallEvents events) = 0;
};

}  // namespace tandem
