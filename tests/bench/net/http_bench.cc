// The HTTP server against itself: what one core of the server's side does per second, whatever the
// load generator beside it costs. `per_core` divides by the CPU time of the server's only thread.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/fd.h"
#include "common/net/http_router.h"
#include "common/net/http_server.h"
#include "common/obs/metrics.h"

namespace tandem {
namespace {

// As long as a chat chunk usually is.
const std::string kEvent =
    "data: "
    "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":"
    "1700000000,"
    "\"model\":\"chat-6m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" "
    "word\"},\"finish_reason\":null}]}\n\n";

class BenchServer {
 public:
  BenchServer() {
    router_.exact("GET", "/hello", [this](HttpRequest, HttpResponder r) {
      thread_ = pthread_self();
      r.respond({200, "text/plain", {}, "hello"});
    });
    router_.exact("GET", "/stream", [this](HttpRequest, HttpResponder r) {
      thread_ = pthread_self();
      r.start_stream(200, "text/event-stream");
      std::lock_guard lock(mutex_);
      streams_.push_back(std::move(r));
      changed_.notify_all();
    });
    HttpSettings settings;
    settings.port = 0;
    settings.threads = 1;
    server_ = HttpServer::create(settings,
                                 [this](HttpRequest q, HttpResponder r) {
                                   router_.handle(std::move(q), std::move(r));
                                 },
                                 {clock_, Logger(sink_, LogLevel::kError), metrics_})
                  .value();
  }
  ~BenchServer() {
    streams_.clear();
    server_.reset();
  }
  [[nodiscard]] uint16_t port() const { return server_->port(); }
  // CPU seconds of the thread that serves; after the first request.
  [[nodiscard]] double cpu_seconds() const {
    clockid_t id{};
    timespec t{};
    TANDEM_CHECK(pthread_getcpuclockid(thread_, &id) == 0 && clock_gettime(id, &t) == 0,
                 "a thread's clock");
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  std::vector<HttpResponder> take_streams(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return streams_.size() >= count; });
    return std::move(streams_);
  }

 private:
  SteadyClock clock_;
  LogSink sink_{Fd(::dup(2)), clock_};
  MetricsRegistry metrics_;
  HttpRouter router_;
  std::atomic<pthread_t> thread_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpResponder> streams_;
  std::unique_ptr<HttpServer> server_;
};

Fd dial(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TANDEM_CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
               "connect");
  return fd;
}

void put(const Fd& fd, std::string_view bytes) {
  TANDEM_CHECK(
      ::send(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
      "send");
}

// Reads until `needle` has come `count` times; it must not be cut across reads by more than the
// tail kept.
void read_count(const Fd& fd, std::string_view needle, size_t count) {
  char buffer[65536];
  std::string tail;
  while (count > 0) {
    const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    TANDEM_CHECK(n > 0, "the server closed");
    tail.append(buffer, static_cast<size_t>(n));
    size_t at = 0;
    while ((at = tail.find(needle)) != std::string::npos && count > 0) {
      tail.erase(0, at + needle.size());
      --count;
    }
    if (tail.size() > needle.size()) tail.erase(0, tail.size() - needle.size() + 1);
  }
}

void requests(benchmark::State& state) {
  constexpr size_t kConnections = 32;
  BenchServer server;
  std::vector<Fd> clients;
  for (size_t i = 0; i < kConnections; ++i) clients.push_back(dial(server.port()));
  const std::string request =
      "GET /hello HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
  put(clients[0], request);
  read_count(clients[0], "hello", 1);
  const double before = server.cpu_seconds();
  double done = 0;
  for (auto _ : state) {
    for (const Fd& c : clients) put(c, request);
    for (const Fd& c : clients) read_count(c, "\r\n\r\nhello", 1);
    done += kConnections;
  }
  state.counters["per_second"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  state.counters["per_core"] = done / (server.cpu_seconds() - before);
}
BENCHMARK(requests)->UseRealTime();

// range(0) events to each of 64 streams, then the clients catch up: 1 is the pace of a decode step,
// where every event is a write of its own.
void sse_events(benchmark::State& state) {
  constexpr size_t kStreams = 64;
  const auto batch = static_cast<size_t>(state.range(0));
  BenchServer server;
  std::vector<Fd> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(dial(server.port()));
    put(clients.back(), "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  const std::vector<HttpResponder> streams = server.take_streams(kStreams);
  const double before = server.cpu_seconds();
  double done = 0;
  for (auto _ : state) {
    for (size_t e = 0; e < batch; ++e) {
      for (const HttpResponder& s : streams) TANDEM_CHECK(s.write(kEvent), "room in the queue");
    }
    for (const Fd& c : clients) read_count(c, "null}]}\n\n", batch);
    done += static_cast<double>(batch * kStreams);
  }
  state.counters["per_second"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  state.counters["per_core"] = done / (server.cpu_seconds() - before);
  for (const HttpResponder& s : streams) s.finish();
}
BENCHMARK(sse_events)->Arg(1)->Arg(4)->Arg(16)->UseRealTime();

}  // namespace
}  // namespace tandem
