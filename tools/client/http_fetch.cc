#include "tools/client/http_fetch.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "common/base/utf8.h"

namespace tandem::client {
namespace {

namespace json = boost::json;

Result<json::object> object_of(std::string_view target, const HttpReply& reply) {
  json::error_code error;
  json::value value = json::parse(reply.body, error);
  if (reply.status != 200) return fail(refusal(target, reply));
  if (error || !value.is_object()) {
    return fail(ErrorCode::kUnavailable,
                std::string(target) + " answered no JSON object: " + server_message(reply.body));
  }
  return std::move(value.get_object());
}

// What a connection's error leaves open: which flag helps.
Result<HttpReply> with_advice(Result<HttpReply> reply) {
  if (!reply && reply.error().code == ErrorCode::kUnauthenticated) {
    reply.error().detail +=
        "; name a file that holds its issuer in SSL_CERT_FILE, or accept any certificate with "
        "--insecure";
  }
  return reply;
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
  return with_advice(client_->request(call("GET", target)));
}

Result<HttpReply> HttpFetcher::post_json(std::string_view target, std::string body,
                                         std::function<void(std::string_view)> on_data,
                                         const std::function<bool()>& cancelled) {
  HttpCall post = call("POST", target);
  post.headers.emplace_back("Content-Type", "application/json");
  post.body = std::move(body);
  return with_advice(client_->stream(std::move(post), std::move(on_data), cancelled));
}

Result<json::object> HttpFetcher::get_object(std::string_view target) {
  TANDEM_ASSIGN(const HttpReply reply, get(target));
  return object_of(target, reply);
}

Result<json::object> HttpFetcher::post_object(std::string_view target, std::string body) {
  TANDEM_ASSIGN(const HttpReply reply, post_json(target, std::move(body)));
  return object_of(target, reply);
}

Result<json::object> HttpFetcher::model(std::string_view id) {
  TANDEM_ASSIGN(const json::object models, get_object("/v1/models"));
  const json::value* data = models.if_contains("data");
  if (data != nullptr && data->is_array()) {
    for (const json::value& entry : data->get_array()) {
      const json::object* object = entry.if_object();
      const json::value* name = object != nullptr ? object->if_contains("id") : nullptr;
      if (name == nullptr || !name->is_string()) continue;
      if (id.empty() || id == std::string_view(name->get_string())) return *object;
    }
  }
  return fail(ErrorCode::kNotFound,
              id.empty() ? std::string("/v1/models lists no model: name one with --model")
                         : "/v1/models does not list " + std::string(id),
              "--model");
}

Result<std::string> HttpFetcher::first_model() {
  TANDEM_ASSIGN(const json::object first, model({}));
  return std::string(first.at("id").as_string());
}

std::string server_root(std::string url) {
  const auto cut = [&url] {
    while (url.ends_with('/')) url.pop_back();
  };
  cut();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  cut();
  return url;
}

namespace {

// One line of text for a terminal or a JSON string, whatever came over the wire.
std::string one_line(std::string_view text) {
  constexpr size_t kMost = 300;  // bytes
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_sequence_length(text);
    if (out.size() + std::max<size_t>(length, 1) > kMost) return out + "...";
    if (length == 0) {
      out += '?';
    } else if (length == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f)) {
      if (!out.empty() && out.back() != ' ') out += ' ';
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace

std::string server_message(std::string_view body) {
  json::error_code failed;
  const json::value value = json::parse(body, failed);
  if (!failed && value.is_object()) {
    // {"error": {"message": …}} as OpenAI has it; {"message": …} and {"error": …} also occur.
    const json::value* at = value.get_object().if_contains("error");
    if (at == nullptr) at = &value;
    if (const json::object* object = at->if_object()) at = object->if_contains("message");
    if (at != nullptr && at->is_string()) return one_line(at->get_string());
  }
  const std::string text = one_line(body);
  return text.empty() ? "nothing more" : text;
}

Error refusal(std::string_view target, const HttpReply& reply) {
  const std::string said = std::string(target) + " answered " + std::to_string(reply.status) +
                           ": " + server_message(reply.body);
  if (reply.status != 401 && reply.status != 403) {
    return make_error(ErrorCode::kUnavailable, said);
  }
  return make_error(
      ErrorCode::kUnauthenticated,
      said + "; give the key with --api-key or in the environment variable TANDEM_API_KEY");
}

std::string url_of(std::string_view address, bool tls) {
  std::string text(address);
  for (const std::string_view wildcard : {"0.0.0.0:", "[::]:"}) {
    if (text.starts_with(wildcard)) text = "127.0.0.1:" + text.substr(wildcard.size());
  }
  return (tls ? "https://" : "http://") + text;
}

}  // namespace tandem::client
