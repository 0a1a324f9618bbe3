#include "common/net/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/process_limits.h"
#include "common/net/http_connection.h"
#include "common/net/http_head.h"
#include "common/net/io_thread.h"
#include "common/net/listen.h"
#include "common/net/tls.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Descriptors that connections leave to everything else: files, nodes, and those turned away.
constexpr uint64_t kReservedFiles = 256;

uint32_t thread_count(uint32_t configured) {
  if (configured != 0) return configured;
  return std::thread::hardware_concurrency() >= kCoresForHttpThreads ? 2 : 1;
}

// A process that has run out of descriptors can accept nobody, not even to say so.
uint64_t reserved_files() { return std::min(kReservedFiles, open_file_limit() / 2); }

HttpSettings within_file_limit(HttpSettings settings, const Logger& log) {
  const uint64_t most = open_file_limit() - reserved_files();
  if (settings.max_connections <= most) return settings;
  log.warning("connections_limited", {{"max_connections", settings.max_connections},
                                      {"possible", most},
                                      {"reason", "the limit on open files (ulimit -n)"}});
  settings.max_connections = static_cast<uint32_t>(std::max<uint64_t>(most, 1));
  return settings;
}

// A connection over the limit: told so, drained for a moment so that the answer gets through,
// closed.
class TurnedAway : public std::enable_shared_from_this<TurnedAway> {
 public:
  TurnedAway(tcp::socket socket, std::shared_ptr<std::atomic<size_t>> count)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), count_(std::move(count)) {
    ++*count_;
    const HttpResponse response = error_response(
        make_error(ErrorCode::kUnavailable, "too many connections are open; try again later"));
    answer_ = build_head(response, {},
                         {.keep_alive = false,
                          .content_length = response.body.size(),
                          .date_line = {},
                          .request_id = {}}) +
              response.body;
  }
  ~TurnedAway() { --*count_; }

  void start() {
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([self = shared_from_this()](const error_code&) {
      error_code ignored;
      self->socket_.close(ignored);
    });
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](const error_code& error, size_t) {
                        error_code ignored;
                        if (!error) self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
                        self->read();
                      });
  }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(scratch_),
                            [self = shared_from_this()](const error_code& error, size_t) {
                              if (error) {
                                self->timer_.cancel();
                              } else {
                                self->read();
                              }
                            });
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  std::shared_ptr<std::atomic<size_t>> count_;
  std::string answer_;
  char scratch_[4096];
};

class Server final : public HttpServer {
 public:
  Server(const HttpSettings& settings, HttpHandler handler, HttpServerDeps deps,
         std::unique_ptr<asio::ssl::context> tls)
      : shared_(within_file_limit(settings, deps.log), std::move(handler), deps),
        tls_(std::move(tls)),
        max_turned_away_(std::clamp<uint64_t>(reserved_files() / 4, 1, 64)) {
    if (deps.shared_loop != nullptr && settings.threads == 0) {
      loops_.push_back(deps.shared_loop);
    } else {
      for (uint32_t i = 0; i < thread_count(settings.threads); ++i) {
        own_loops_.push_back(std::make_unique<IoThread>("http-" + std::to_string(i)));
        loops_.push_back(own_loops_.back().get());
      }
    }
    for (IoThread* loop : loops_) {
      workers_.push_back(std::make_unique<HttpWorker>(loop->context(), shared_));
    }
  }
  ~Server() override { stop(); }

  Status listen() {
    TANDEM_ASSIGN(acceptor_, listen_on(loops_.front()->context(), shared_.settings.host,
                                       shared_.settings.port));
    error_code error;
    port_ = acceptor_->local_endpoint(error).port();
    pause_.emplace(loops_.front()->context());
    accept();
    for (auto& loop : own_loops_) loop->start();
    running_ = true;
    return {};
  }

  uint16_t port() const override { return port_; }

  bool drain(Duration timeout) override {
    if (!running_) return true;
    shared_.draining = true;
    run_on(0, [this] {
      error_code ignored;
      acceptor_->close(ignored);
      pause_->cancel();
    });
    for (size_t i = 0; i < loops_.size(); ++i) run_on(i, [this, i] { workers_[i]->close_idle(); });
    return shared_.wait_until_none(timeout);
  }

  void stop() override {
    if (!running_) return;
    drain(Duration::zero());
    for (size_t i = 0; i < loops_.size(); ++i) {
      run_on(i, [this, i] {
        workers_[i]->close_all();
        workers_[i]->gate()->close();  // a shared loop goes on
      });
    }
    for (auto& loop : own_loops_) loop->stop();
    running_ = false;
  }

 private:
  // Waits until `work` has run on loop i; later posts of the same loop come after it.
  template <typename Work>
  void run_on(size_t i, Work work) {
    std::promise<void> done;
    loops_[i]->post([&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }

  void accept() {
    const size_t turn = next_++ % loops_.size();
    acceptor_->async_accept(
        loops_[turn]->context(), [this, turn](const error_code& error, tcp::socket socket) {
          if (error == asio::error::operation_aborted || !acceptor_->is_open()) return;
          if (error) {
            shared_.log.warning("http_accept_failed", {{"error", error.message()}});
            pause_->expires_after(std::chrono::milliseconds(200));
            pause_->async_wait([this](const error_code& cancelled) {
              if (!cancelled) accept();
            });
            return;
          }
          take(turn, std::move(socket));
          accept();
        });
  }

  void take(size_t turn, tcp::socket socket) {
    if (shared_.try_add()) {
      asio::post(loops_[turn]->context(), [this, turn, s = std::move(socket)]() mutable {
        if (tls_) {
          workers_[turn]->serve_tls(std::move(s), *tls_);
        } else {
          workers_[turn]->serve(std::move(s));
        }
      });
      return;
    }
    shared_.rejected.with({"too_many_connections"}).add();
    if (tls_ || *turned_away_ >= max_turned_away_) return;  // closes the socket
    shared_.answered_alone(503);
    shared_.requests.with({"other", "5xx"}).add();  // before its method is known
    asio::post(loops_[turn]->context(), [count = turned_away_, s = std::move(socket)]() mutable {
      std::make_shared<TurnedAway>(std::move(s), std::move(count))->start();
    });
  }

  HttpShared shared_;
  std::unique_ptr<asio::ssl::context> tls_;
  std::vector<std::unique_ptr<IoThread>> own_loops_;
  std::vector<IoThread*> loops_;  // outlive everything that is bound to them
  std::vector<std::unique_ptr<HttpWorker>> workers_;
  std::optional<tcp::acceptor> acceptor_;
  std::optional<asio::steady_timer> pause_;
  const size_t max_turned_away_;  // connections over the limit that get a 503, at once
  std::shared_ptr<std::atomic<size_t>> turned_away_ = std::make_shared<std::atomic<size_t>>(0);
  uint16_t port_ = 0;
  size_t next_ = 0;
  bool running_ = false;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpSettings& settings,
                                                       HttpHandler handler, HttpServerDeps deps) {
  std::unique_ptr<asio::ssl::context> tls;
  if (settings.tls.enabled()) {
    TANDEM_ASSIGN(tls, make_tls(settings.tls));
  }
  auto server = std::make_unique<Server>(settings, std::move(handler), deps, std::move(tls));
  TANDEM_TRY(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace tandem
