#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "common/net/cors.h"
#include "common/net/http_exchange.h"
#include "common/net/http_server.h"
#include "common/obs/metrics.h"

namespace tandem {

// What all connections of a server share. Read-only but for the atomics; any thread.
struct HttpShared {
  HttpShared(const HttpSettings& s, HttpHandler h, HttpServerDeps d);

  const HttpSettings settings;
  const HttpHandler handler;
  const Clock& clock;
  const Logger log;
  const std::function<void(int status)> on_own_answer;
  const CorsPolicy cors;
  Gauge open_connections;
  CounterFamily requests;  // by method and class of status
  CounterFamily rejected;  // by reason: what the server refused or cut off itself
  std::atomic<bool> draining{false};

  // Tells on_own_answer.
  void answered_alone(int status) const {
    if (on_own_answer) on_own_answer(status);
  }

  // Open connections, to keep to the limit and to wait for the last one.
  bool try_add();
  void remove();
  bool wait_until_none(Duration timeout);

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  size_t open_ = 0;  // under mutex_
};

class HttpConnectionBase : public ExchangeOwner {
 public:
  virtual void start() = 0;
  // Looks at the deadlines.
  virtual void tick(TimePoint now) = 0;
  virtual void close_if_idle() = 0;
  // At once: the server stops.
  virtual void cut() = 0;
};

// The connections of one event loop. Everything here happens on its thread.
class HttpWorker {
 public:
  HttpWorker(boost::asio::io_context& context, HttpShared& shared);
  ~HttpWorker();  // after close_all() and the loop's end
  HttpWorker(const HttpWorker&) = delete;
  HttpWorker& operator=(const HttpWorker&) = delete;

  // Takes a connection that has been counted by try_add().
  void serve(boost::asio::ip::tcp::socket socket);
  void serve_tls(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context& tls);
  void close_idle();
  void close_all();

  void remove(const std::shared_ptr<HttpConnectionBase>& connection);
  [[nodiscard]] const std::shared_ptr<LoopGate>& gate() const { return gate_; }
  // "Date: …\r\n" of this second.
  const std::string& date_line();

 private:
  void add(std::shared_ptr<HttpConnectionBase> connection);
  void arm();

  HttpShared& shared_;
  const std::shared_ptr<LoopGate> gate_;
  boost::asio::steady_timer timer_;
  const Duration period_;
  bool armed_ = false;
  std::unordered_set<std::shared_ptr<HttpConnectionBase>> connections_;
  std::string date_line_;
  int64_t date_second_ = -1;
};

}  // namespace tandem
