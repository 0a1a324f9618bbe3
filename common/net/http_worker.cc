#include <algorithm>
#include <ctime>

#include "common/net/http_connection_impl.h"

namespace tandem {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

HttpShared::HttpShared(const HttpSettings& s, HttpHandler h, HttpServerDeps d)
    : settings(s),
      handler(std::move(h)),
      clock(d.clock),
      log(d.log),
      on_own_answer(std::move(d.on_own_answer)),
      cors(s.cors_origins),
      open_connections(d.metrics.gauge("tandem_http_connections", "Open client connections")),
      requests(d.metrics.counters(
          "tandem_http_requests_total", "Answers by method and class of status",
          {Label{.name = "method",
                 .values = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "other"}},
           Label{.name = "status", .values = {"2xx", "3xx", "4xx", "5xx"}}})),
      rejected(d.metrics.counters(
          "tandem_http_rejected_total",
          "Requests and connections the server itself refused or cut off",
          {Label{.name = "reason",
                 .values = {"bad_request", "body_too_large", "header_too_large", "header_timeout",
                            "body_timeout", "write_timeout", "too_many_connections", "tls"}}})) {}

bool HttpShared::try_add() {
  {
    std::lock_guard lock(mutex_);
    if (open_ >= settings.max_connections) return false;
    ++open_;
  }
  open_connections.add(1);
  return true;
}

void HttpShared::remove() {
  open_connections.add(-1);
  std::lock_guard lock(mutex_);
  --open_;
  if (open_ == 0) none_.notify_all();
}

bool HttpShared::wait_until_none(Duration timeout) {
  std::unique_lock lock(mutex_);
  return none_.wait_for(lock, timeout, [this] { return open_ == 0; });
}

HttpWorker::HttpWorker(asio::io_context& context, HttpShared& shared)
    : shared_(shared),
      gate_(std::make_shared<LoopGate>(context.get_executor())),
      timer_(context),
      // Fine enough for the shortest limit that is configured, coarse enough to cost nothing.
      period_(std::clamp<Duration>(
          std::min({shared.settings.header_timeout, shared.settings.body_timeout,
                    shared.settings.write_timeout, shared.settings.idle_timeout}) /
              4,
          std::chrono::milliseconds(2), std::chrono::milliseconds(250))) {}

HttpWorker::~HttpWorker() { gate_->close(); }

void HttpWorker::arm() {
  armed_ = true;
  timer_.expires_after(period_);
  timer_.async_wait([this](const error_code& error) {
    armed_ = false;
    if (error) return;
    const TimePoint now = shared_.clock.now();
    // A copy: connections may close, and so leave the set, while they are looked at.
    const std::vector<std::shared_ptr<HttpConnectionBase>> all(connections_.begin(),
                                                               connections_.end());
    for (const auto& connection : all) connection->tick(now);
    if (!connections_.empty()) arm();
  });
}

void HttpWorker::add(std::shared_ptr<HttpConnectionBase> connection) {
  connections_.insert(connection);
  if (!armed_) arm();
  connection->start();
}

void HttpWorker::serve(tcp::socket socket) {
  add(std::make_shared<HttpConnection<tcp::socket>>(std::move(socket), *this, shared_));
}

void HttpWorker::serve_tls(tcp::socket socket, asio::ssl::context& tls) {
  add(std::make_shared<HttpConnection<asio::ssl::stream<tcp::socket>>>(
      asio::ssl::stream<tcp::socket>(std::move(socket), tls), *this, shared_));
}

void HttpWorker::remove(const std::shared_ptr<HttpConnectionBase>& connection) {
  connections_.erase(connection);
}

void HttpWorker::close_idle() {
  const std::vector<std::shared_ptr<HttpConnectionBase>> all(connections_.begin(),
                                                             connections_.end());
  for (const auto& connection : all) connection->close_if_idle();
}

void HttpWorker::close_all() {
  const std::vector<std::shared_ptr<HttpConnectionBase>> all(connections_.begin(),
                                                             connections_.end());
  for (const auto& connection : all) connection->cut();
  timer_.cancel();
}

const std::string& HttpWorker::date_line() {
  const auto second = static_cast<std::time_t>(shared_.clock.unix_seconds());
  if (second != date_second_) {
    date_second_ = second;
    std::tm parts{};
    gmtime_r(&second, &parts);
    char text[64];
    const size_t length =
        std::strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts);
    date_line_.assign(text, length);
  }
  return date_line_;
}

}  // namespace tandem
