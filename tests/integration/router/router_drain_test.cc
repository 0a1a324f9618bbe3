// How a router ends: what clients with open answers see.
#include <atomic>
#include <boost/json.hpp>

#include "tests/integration/router/router_fixture.h"

namespace tandem::router::test {
namespace {

namespace json = boost::json;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

class DrainTest : public RouterTest {
 protected:
  // A node whose answers stop growing after three tokens.
  void boot_with_a_slow_node() {
    boot();
    FakeNodeOptions options;
    options.hold_after = 3;
    options.token_time = milliseconds(1);
    options.script = [](const control::Task& task) { return speak(task, "one two three four"); };
    add_node(std::move(options));
  }
  static std::string request(bool stream) {
    const std::string body = chat_body(stream ? "\"stream\":true" : "");
    return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // Both kinds of clients, in mid-answer when the router stops; what they have read at its end.
  void stop_under_clients(Duration patience, const std::function<bool()>& hurry = {}) {
    std::thread streamed([&] { streamed_ = raw({request(true)}); });
    std::thread whole([&] { whole_ = raw({request(false)}); });
    EXPECT_TRUE(wait([&] { return metric("tandem_router_itl_seconds_count") == 4; }));
    const TimePoint begin = kClock.now();
    router_->stop(patience, hurry);
    took_ = kClock.now() - begin;
    streamed.join();
    whole.join();
  }
  static json::value error_of(const std::string& text) {
    const size_t at = text.rfind("{\"error\"");
    EXPECT_NE(at, text.npos) << text;
    if (at == text.npos) return {};
    return json::parse(text.substr(at, text.find_first_of("\r\n", at) - at)).at("error");
  }
  void expect_errors() {
    EXPECT_NE(streamed_.find("three"), streamed_.npos) << streamed_;
    EXPECT_NE(streamed_.rfind("data: {\"error\""), streamed_.npos) << streamed_;
    EXPECT_EQ(streamed_.find("[DONE]"), streamed_.npos);
    EXPECT_TRUE(streamed_.ends_with("\r\n0\r\n\r\n")) << "an orderly end: " << streamed_;
    EXPECT_EQ(whole_.substr(0, 12), "HTTP/1.1 503");
    EXPECT_NE(whole_.find("Retry-After: 1\r\n"), whole_.npos) << whole_;
    for (const std::string* answer : {&streamed_, &whole_}) {
      const json::value error = error_of(*answer);
      ASSERT_TRUE(error.is_object());
      EXPECT_EQ(error.at("code").as_string(), "unavailable");
      EXPECT_EQ(error.at("type").as_string(), "server_error");
      EXPECT_NE(error.at("message").as_string().find("shutting down"), json::string::npos);
    }
  }

  std::string streamed_, whole_;
  Duration took_{};
};

TEST_F(DrainTest, WhatIsOpenAtItsEndGetsAnError) {
  boot_with_a_slow_node();
  stop_under_clients(milliseconds(300));
  expect_errors();
  EXPECT_GE(took_, milliseconds(300));
  EXPECT_LT(took_, seconds(30));
}

TEST_F(DrainTest, HurryCutsItShortWithTheSameErrors) {
  boot_with_a_slow_node();
  const TimePoint then = kClock.now() + milliseconds(100);
  stop_under_clients(hours(1), [&] { return kClock.now() > then; });
  expect_errors();
  EXPECT_LT(took_, seconds(30));
}

TEST_F(DrainTest, NothingNewIsTakenMeanwhile) {
  boot_with_a_slow_node();
  std::atomic<bool> hurry{false};
  std::thread open([&] { streamed_ = raw({request(true)}); });
  EXPECT_TRUE(wait([&] { return metric("tandem_router_itl_seconds_count") == 2; }));
  std::thread stopping([&] { router_->stop(hours(1), [&] { return hurry.load(); }); });
  EXPECT_TRUE(wait([&] { return get("/health/ready").status == 503; }));
  EXPECT_NE(get("/health/ready").body.find("draining"), std::string::npos);
  const HttpReply refused = chat("");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting down"), refused.body.npos);
  hurry = true;
  stopping.join();
  open.join();
}

}  // namespace
}  // namespace tandem::router::test
