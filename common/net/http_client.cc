#include "common/net/http_client.h"

#include <future>

#include "common/net/io_thread.h"

namespace tandem {

struct HttpClient::Impl {
  IoThread io{"http-client"};
  std::unique_ptr<AsyncHttpClient> client;  // bound to `io`: used and destroyed on its thread
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {}

HttpClient::~HttpClient() {
  impl_->io.stop();
  impl_->client.reset();
}

Result<std::unique_ptr<HttpClient>> HttpClient::create(const std::string& url,
                                                       AsyncHttpOptions options) {
  std::unique_ptr<HttpClient> client(new HttpClient());
  TANDEM_ASSIGN(client->impl_->client, AsyncHttpClient::create(client->impl_->io, url, options));
  client->impl_->io.start();
  return client;
}

Result<HttpReply> HttpClient::request(HttpCall call) { return run(std::move(call), nullptr); }

Result<HttpReply> HttpClient::stream(HttpCall call, std::function<void(std::string_view)> on_data) {
  return run(std::move(call), std::move(on_data));
}

Result<HttpReply> HttpClient::run(HttpCall call, std::function<void(std::string_view)> on_data) {
  // Shared with the events, though the wait below is as long as they can come.
  struct Outcome {
    HttpReply reply;
    size_t bytes = 0;
    std::promise<Status> end;
  };
  const auto outcome = std::make_shared<Outcome>();
  std::future<Status> end = outcome->end.get_future();
  HttpCallEvents events;
  events.on_head = [outcome](int status, const HttpHeaders& headers) {
    outcome->reply.status = status;
    outcome->reply.headers = headers;
  };
  const bool streamed = static_cast<bool>(on_data);
  events.on_data = [outcome, on_data = std::move(on_data)](std::string_view bytes) {
    outcome->bytes += bytes.size();
    if (on_data) {
      on_data(bytes);
    } else if (outcome->bytes <= kMaxBody) {
      outcome->reply.body += bytes;
    }
  };
  events.on_end = [outcome](Status status) { outcome->end.set_value(std::move(status)); };
  impl_->io.post([this, call = std::move(call), events = std::move(events)]() mutable {
    impl_->client->send(std::move(call), std::move(events));
  });
  TANDEM_TRY(end.get());
  if (!streamed && outcome->bytes > kMaxBody) {
    return fail(ErrorCode::kPayloadTooLarge, "the answer is larger than 256 MiB");
  }
  return std::move(outcome->reply);
}

}  // namespace tandem
