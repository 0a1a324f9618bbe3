#pragma once

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "common/base/fd.h"
#include "common/net/http_router.h"
#include "common/net/http_server.h"
#include "common/obs/metrics.h"

namespace tandem {

// A raw TCP client, so that tests can send what no library would.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval limit{60, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Everything up to the end of the connection.
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(buffer_, {});
  }
  // Up to and including `end`; shorter if the connection ends first.
  std::string read_until(std::string_view end) {
    while (buffer_.find(end) == std::string::npos && fill()) {
    }
    const size_t at = buffer_.find(end);
    const size_t length = at == std::string::npos ? buffer_.size() : at + end.size();
    const std::string out = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return out;
  }
  std::string read_bytes(size_t count) {
    while (buffer_.size() < count && fill()) {
    }
    const std::string out = buffer_.substr(0, count);
    buffer_.erase(0, out.size());
    return out;
  }
  // One answer with a Content-Length: head and body.
  std::string read_answer() {
    const std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    return head + read_bytes(std::stoul(head.substr(at + 16)));
  }
  [[nodiscard]] bool ended() const { return ended_; }
  void close() { fd_.reset(); }
  void shut_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  bool fill() {
    char chunk[4096];
    const ssize_t n = ::recv(fd_.get(), chunk, sizeof chunk, 0);
    if (n <= 0) {
      EXPECT_TRUE(n == 0 || errno != EAGAIN) << "nothing came for ten seconds";
      ended_ = true;
      return false;
    }
    buffer_.append(chunk, static_cast<size_t>(n));
    return true;
  }
  Fd fd_;
  std::string buffer_;
  bool ended_ = false;
};

inline std::string get(std::string_view target, std::string_view more = "") {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: x\r\n" + std::string(more) + "\r\n";
}
inline std::string post(std::string_view target, std::string_view body,
                        std::string_view more = "") {
  return "POST " + std::string(target) +
         " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more) + "\r\n" + std::string(body);
}

// Of an answer as it came over the wire.
inline auto answers(int status) {
  return ::testing::StartsWith("HTTP/1.1 " + std::to_string(status) + " ");
}
inline auto is_json_error(int status) {
  return ::testing::AllOf(answers(status),
                          ::testing::HasSubstr("Content-Type: application/json\r\n"),
                          ::testing::HasSubstr("{\"error\":{\"message\":\""),
                          ::testing::HasSubstr("\"type\":\""), ::testing::HasSubstr("\"code\":\""));
}

// A server with a few routes that tests need.
class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    settings_.port = 0;
    settings_.threads = 1;
    router_.exact("GET", "/hello", [](HttpRequest, HttpResponder r) {
      r.respond({200, "text/plain", {}, "hello"});
    });
    router_.exact("POST", "/echo", [](HttpRequest q, HttpResponder r) {
      r.respond({200, "text/plain", {{"X-Path", q.path}}, q.body});
    });
    router_.prefix("GET", "/v1/models/", [](HttpRequest q, HttpResponder r) {
      r.respond({200, "text/plain", {}, q.path.substr(11) + "?" + q.query});
    });
  }
  void start() {
    auto server = HttpServer::create(
        settings_,
        [this](HttpRequest q, HttpResponder r) { router_.handle(std::move(q), std::move(r)); },
        {.clock = clock_,
         .log = Logger(sink_, LogLevel::kError),
         .metrics = metrics_,
         .on_own_answer = [this](int status) { own_errors_ += status >= 500 ? 1 : 0; }});
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
  }
  RawClient client() { return RawClient(server_->port()); }
  std::string ask(std::string_view bytes) {
    RawClient c = client();
    c.send(bytes);
    return c.read_answer();
  }

  HttpSettings settings_;
  HttpRouter router_;
  SteadyClock clock_;
  LogSink sink_{Fd(::dup(2)), clock_};
  MetricsRegistry metrics_;
  std::atomic<int> own_errors_{0};  // 5xx that the server gave by itself
  std::unique_ptr<HttpServer> server_;
};

}  // namespace tandem
