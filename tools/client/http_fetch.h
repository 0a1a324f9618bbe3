#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/http_client.h"

namespace tandem::client {

struct FetchOptions {
  std::string url;                              // http://host:port or https://host:port
  std::string api_key;                          // empty: none
  Duration timeout = std::chrono::seconds(10);  // connect, and silence of the server
  bool verify_certificate = true;
};

// An HttpClient that knows the key, JSON and what an OpenAI-compatible server lists. One thread
// owns it and waits for each request.
class HttpFetcher {
 public:
  [[nodiscard]] static Result<std::unique_ptr<HttpFetcher>> create(const FetchOptions& options);

  [[nodiscard]] Result<HttpReply> get(std::string_view target);
  // As HttpClient::stream. Errors of both say what to do where a flag helps.
  [[nodiscard]] Result<HttpReply> post_json(std::string_view target, std::string body,
                                            std::function<void(std::string_view)> on_data = {},
                                            const std::function<bool()>& cancelled = {});

  // The JSON object that the server answers. kUnavailable, with the answer's beginning, for
  // anything but a 200 with an object.
  [[nodiscard]] Result<boost::json::object> get_object(std::string_view target);
  [[nodiscard]] Result<boost::json::object> post_object(std::string_view target, std::string body);
  // What /v1/models lists under that id; empty: the first. It has an "id" that is a string.
  // kNotFound if there is none.
  [[nodiscard]] Result<boost::json::object> model(std::string_view id);
  // The first id of /v1/models.
  [[nodiscard]] Result<std::string> first_model();

 private:
  HttpFetcher(std::unique_ptr<HttpClient> client, std::string api_key);
  [[nodiscard]] HttpCall call(std::string method, std::string_view target) const;

  const std::unique_ptr<HttpClient> client_;
  const std::string api_key_;
};

// The server that a URL means, as users copy it from other programs: without a final slash and
// without the /v1 that requests bring along themselves.
[[nodiscard]] std::string server_root(std::string url);

// What a server says in the body of a refusal: the message of an OpenAI-shaped error, else the
// body's beginning.
[[nodiscard]] std::string server_message(std::string_view body);

// Why an answer is not the 200 that was asked for, with the server's own words, and what to do.
// kUnauthenticated for a 401 or 403, else kUnavailable.
[[nodiscard]] Error refusal(std::string_view target, const HttpReply& reply);

// "http://127.0.0.1:8000" of a listening address; wildcard hosts become the loopback's.
[[nodiscard]] std::string url_of(std::string_view address, bool tls);

}  // namespace tandem::client
