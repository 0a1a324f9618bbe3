#include "tools/client/http_fetch.h"

#include <boost/json.hpp>
#include <utility>

namespace tandem::client {
namespace {

namespace json = boost::json;

Result<json::object> object_of(std::string_view target, const HttpReply& reply) {
  json::error_code error;
  json::value value = json::parse(reply.body, error);
  if (reply.status != 200 || error || !value.is_object()) {
    return fail(ErrorCode::kUnavailable, std::string(target) + " answered " +
                                             std::to_string(reply.status) + ": " +
                                             reply.body.substr(0, 300));
  }
  return std::move(value.get_object());
}

}  // namespace

HttpFetcher::HttpFetcher(std::unique_ptr<HttpClient> client, std::string api_key)
    : client_(std::move(client)), api_key_(std::move(api_key)) {}

Result<std::unique_ptr<HttpFetcher>> HttpFetcher::create(const FetchOptions& options) {
  AsyncHttpOptions http;
  http.connect_timeout = options.timeout;
  http.silence_timeout = options.timeout;
  http.verify_certificate = options.verify_certificate;
  TANDEM_ASSIGN(auto client, HttpClient::create(options.url, http));
  return std::unique_ptr<HttpFetcher>(new HttpFetcher(std::move(client), options.api_key));
}

HttpCall HttpFetcher::call(std::string method, std::string_view target) const {
  HttpCall call;
  call.method = std::move(method);
  call.target = target;
  if (!api_key_.empty()) call.headers.emplace_back("Authorization", "Bearer " + api_key_);
  return call;
}

Result<HttpReply> HttpFetcher::get(std::string_view target) {
  return client_->request(call("GET", target));
}

Result<HttpReply> HttpFetcher::post_json(std::string_view target, std::string body,
                                         std::function<void(std::string_view)> on_data,
                                         const std::function<bool()>& cancelled) {
  HttpCall post = call("POST", target);
  post.headers.emplace_back("Content-Type", "application/json");
  post.body = std::move(body);
  return client_->stream(std::move(post), std::move(on_data), cancelled);
}

Result<json::object> HttpFetcher::get_object(std::string_view target) {
  TANDEM_ASSIGN(const HttpReply reply, get(target));
  return object_of(target, reply);
}

Result<json::object> HttpFetcher::post_object(std::string_view target, std::string body) {
  TANDEM_ASSIGN(const HttpReply reply, post_json(target, std::move(body)));
  return object_of(target, reply);
}

Result<std::string> HttpFetcher::first_model() {
  TANDEM_ASSIGN(const json::object models, get_object("/v1/models"));
  json::error_code error;
  const json::value whole(models);
  const json::value* id = whole.find_pointer("/data/0/id", error);
  if (error || id == nullptr || !id->is_string()) {
    return fail(ErrorCode::kNotFound, "/v1/models lists no model: name one with --model",
                "--model");
  }
  return std::string(id->get_string());
}

std::string url_of(std::string_view address, bool tls) {
  std::string text(address);
  for (const std::string_view wildcard : {"0.0.0.0:", "[::]:"}) {
    if (text.starts_with(wildcard)) text = "127.0.0.1:" + text.substr(wildcard.size());
  }
  return (tls ? "https://" : "http://") + text;
}

}  // namespace tandem::client
