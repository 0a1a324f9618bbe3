#include "tools/client/http_fetch.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "common/net/async_http_client.h"
#include "common/net/io_thread.h"

namespace tandem::client {
namespace {

// One request on its way. Shared with the callbacks, so that a late one finds it alive.
struct Pending {
  std::mutex mutex;
  std::condition_variable ended;
  FetchResult result;
  std::optional<Status> outcome;
};

}  // namespace

struct HttpFetcher::State {
  FetchOptions options;
  IoThread io{"http-fetch"};
  std::unique_ptr<AsyncHttpClient> client;

  Result<FetchResult> run(HttpCall call, std::function<void(std::string_view)> on_data,
                          const std::function<bool()>& cancelled);
};

HttpFetcher::HttpFetcher(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpFetcher::~HttpFetcher() {
  state_->io.stop();
  state_->client.reset();
}

Result<std::unique_ptr<HttpFetcher>> HttpFetcher::create(const FetchOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  AsyncHttpOptions http;
  http.connect_timeout = options.timeout;
  http.silence_timeout = options.timeout;
  http.verify_certificate = options.verify_certificate;
  TANDEM_ASSIGN(state->client, AsyncHttpClient::create(state->io, options.url, http));
  state->io.start();
  return std::unique_ptr<HttpFetcher>(new HttpFetcher(std::move(state)));
}

Result<FetchResult> HttpFetcher::State::run(HttpCall call,
                                            std::function<void(std::string_view)> on_data,
                                            const std::function<bool()>& cancelled) {
  if (!options.api_key.empty()) {
    call.headers.emplace_back("Authorization", "Bearer " + options.api_key);
  }
  auto pending = std::make_shared<Pending>();
  HttpCallEvents events;
  events.on_head = [pending](int status, const HttpHeaders&) {
    const std::lock_guard lock(pending->mutex);
    pending->result.status = status;
  };
  events.on_data = [pending, on_data = std::move(on_data)](std::string_view bytes) {
    {
      const std::lock_guard lock(pending->mutex);
      if (!on_data || pending->result.status != 200) {
        pending->result.body += bytes;
        return;
      }
    }
    on_data(bytes);
  };
  events.on_end = [pending](Status outcome) {
    const std::lock_guard lock(pending->mutex);
    pending->outcome = std::move(outcome);
    pending->ended.notify_all();
  };
  io.post([this, call = std::move(call), events = std::move(events)]() mutable {
    client->send(std::move(call), std::move(events));
  });
  std::unique_lock lock(pending->mutex);
  while (!pending->outcome) {
    pending->ended.wait_for(lock, std::chrono::milliseconds(100));
    if (cancelled && !pending->outcome && cancelled()) {
      return fail(ErrorCode::kCancelled, "cancelled");
    }
  }
  if (!*pending->outcome) return fail(pending->outcome->error());
  return std::move(pending->result);
}

Result<FetchResult> HttpFetcher::get(std::string_view target) {
  HttpCall call;
  call.target = target;
  return state_->run(std::move(call), {}, {});
}

Result<FetchResult> HttpFetcher::post_json(std::string_view target, std::string body,
                                           std::function<void(std::string_view)> on_data,
                                           const std::function<bool()>& cancelled) {
  HttpCall call;
  call.method = "POST";
  call.target = target;
  call.headers.emplace_back("Content-Type", "application/json");
  call.body = std::move(body);
  return state_->run(std::move(call), std::move(on_data), cancelled);
}

std::string url_of(std::string_view address, bool tls) {
  std::string text(address);
  for (const std::string_view wildcard : {"0.0.0.0:", "[::]:"}) {
    if (text.starts_with(wildcard)) text = "127.0.0.1:" + text.substr(wildcard.size());
  }
  return (tls ? "https://" : "http://") + text;
}

}  // namespace tandem::client
