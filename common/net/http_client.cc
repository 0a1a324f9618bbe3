#include "common/net/http_client.h"

#include <future>
#include <utility>

#include "common/net/io_thread.h"

namespace tandem {
namespace {

constexpr Duration kAskEvery = std::chrono::milliseconds(100);

// Shared with the events: after a cut the wait ends before they are gone.
struct Outcome {
  HttpReply reply;
  size_t bytes = 0;  // of a body that is kept
  std::promise<Status> end;
};

HttpCallEvents events_of(const std::shared_ptr<Outcome>& outcome,
                         std::function<void(std::string_view)> on_data) {
  HttpCallEvents events;
  events.on_head = [outcome](int status, const HttpHeaders& headers) {
    outcome->reply.status = status;
    outcome->reply.headers = headers;
  };
  events.on_data = [outcome, on_data = std::move(on_data)](std::string_view bytes) {
    if (on_data && outcome->reply.status == 200) return on_data(bytes);
    outcome->bytes += bytes.size();
    if (outcome->bytes <= HttpClient::kMaxBody) outcome->reply.body += bytes;
  };
  events.on_end = [outcome](Status status) { outcome->end.set_value(std::move(status)); };
  return events;
}

}  // namespace

struct HttpClient::Impl {
  Impl(std::string u, AsyncHttpOptions o) : url(std::move(u)), options(o) {}

  const std::string url;
  const AsyncHttpOptions options;
  IoThread io{"http-client"};
  std::unique_ptr<AsyncHttpClient> client;  // bound to `io`: used and destroyed on its thread
};

HttpClient::HttpClient(std::string url, AsyncHttpOptions options)
    : impl_(std::make_unique<Impl>(std::move(url), options)) {}

HttpClient::~HttpClient() {
  impl_->io.stop();
  impl_->client.reset();
}

Result<std::unique_ptr<HttpClient>> HttpClient::create(const std::string& url,
                                                       AsyncHttpOptions options) {
  std::unique_ptr<HttpClient> client(new HttpClient(url, options));
  TANDEM_TRY(client->connect());
  client->impl_->io.start();
  return client;
}

Status HttpClient::connect() {
  if (impl_->client) return {};
  TANDEM_ASSIGN(impl_->client, AsyncHttpClient::create(impl_->io, impl_->url, impl_->options));
  return {};
}

// Ends what is open, and waits until no event can follow.
void HttpClient::cut() {
  std::promise<void> gone;
  impl_->io.post([&] {
    impl_->client.reset();
    gone.set_value();
  });
  gone.get_future().wait();
}

Result<HttpReply> HttpClient::request(HttpCall call) { return stream(std::move(call), nullptr); }

Result<HttpReply> HttpClient::stream(HttpCall call, std::function<void(std::string_view)> on_data,
                                     const std::function<bool()>& cancelled) {
  TANDEM_TRY(connect());
  const auto outcome = std::make_shared<Outcome>();
  std::future<Status> end = outcome->end.get_future();
  impl_->io.post([client = impl_->client.get(), call = std::move(call),
                  events = events_of(outcome, std::move(on_data))]() mutable {
    client->send(std::move(call), std::move(events));
  });
  while (cancelled && end.wait_for(kAskEvery) != std::future_status::ready) {
    if (!cancelled()) continue;
    cut();
    return fail(ErrorCode::kCancelled, "cancelled");
  }
  TANDEM_TRY(end.get());
  if (outcome->bytes > kMaxBody) {
    return fail(ErrorCode::kPayloadTooLarge, "the answer is larger than 256 MiB");
  }
  return std::move(outcome->reply);
}

}  // namespace tandem
