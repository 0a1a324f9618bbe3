#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/net/http_server.h"
#include "tests/unit/net/http_test_support.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A handler that keeps its responders for the test to use.
class Streaming : public HttpServerTest {
 protected:
  Streaming() {
    router_.exact("POST", "/keep", [this](HttpRequest, HttpResponder r) { keep(std::move(r)); });
    router_.exact("GET", "/keep", [this](HttpRequest, HttpResponder r) { keep(std::move(r)); });
  }
  void keep(HttpResponder r) {
    r.on_disconnect([this](ClientLoss why) {
      std::lock_guard lock(mutex_);
      ++disconnects_;
      loss_ = why;
      changed_.notify_all();
    });
    std::lock_guard lock(mutex_);
    kept_.push_back(std::move(r));
    changed_.notify_all();
  }
  HttpResponder take() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [this] { return !kept_.empty(); }));
    HttpResponder r = kept_.back();
    kept_.pop_back();
    return r;
  }
  // An answer that has begun: `client` has read its first event.
  HttpResponder stream_to(RawClient& client) {
    client.send(post("/keep", "{}"));
    HttpResponder r = take();
    r.start_stream(200, "text/event-stream");
    r.write("data: 1\n\n");
    client.read_until("\n\n\r\n");
    return r;
  }
  bool wait_for_disconnects(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(60), [&] { return disconnects_ >= count; });
  }
  void TearDown() override {
    kept_.clear();
    server_.reset();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpResponder> kept_;
  int disconnects_ = 0;
  ClientLoss loss_ = ClientLoss::kLeft;  // the last one
};

TEST_F(Streaming, PiecesArriveAsTheyAreWritten) {
  start();
  RawClient c = client();
  c.send(post("/keep", "{}"));
  HttpResponder r = take();
  ASSERT_TRUE(r.start_stream(200, "text/event-stream", {{"Cache-Control", "no-cache"}}));
  EXPECT_THAT(
      c.read_until("\r\n\r\n"),
      AllOf(answers(200), HasSubstr("Content-Type: text/event-stream\r\n"),
            HasSubstr("Transfer-Encoding: chunked\r\n"), HasSubstr("Cache-Control: no-cache\r\n")));
  ASSERT_TRUE(r.write("data: 1\n\n"));
  EXPECT_EQ(c.read_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n") << "before the next one is written";
  ASSERT_TRUE(r.write("data: 2\n\n"));
  EXPECT_EQ(c.read_until("\n\n\r\n"), "9\r\ndata: 2\n\n\r\n");
  r.finish();
  EXPECT_EQ(c.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(r.write("late"));
  c.send(get("/hello"));
  EXPECT_THAT(c.read_answer(), EndsWith("hello")) << "the connection goes on";
  EXPECT_EQ(disconnects_, 0);
}

TEST_F(Streaming, Http10GetsAPlainBodyThatEndsWithTheConnection) {
  start();
  RawClient c = client();
  c.send("GET /keep HTTP/1.0\r\n\r\n");
  HttpResponder r = take();
  r.start_stream(200, "text/event-stream");
  r.write("data: 1\n\n");
  r.finish();
  const std::string all = c.read_all();
  EXPECT_THAT(all, AllOf(answers(200), Not(HasSubstr("chunked")), EndsWith("\r\n\r\ndata: 1\n\n")));
}

TEST_F(Streaming, AClientThatLeavesIsNoticedInEveryPhase) {
  start();
  {
    RawClient waiting = client();
    waiting.send(post("/keep", "{}"));
    take().on_disconnect([this](ClientLoss) {
      std::lock_guard lock(mutex_);
      ++disconnects_;
      changed_.notify_all();
    });
    // The last handle is gone, so this one is answered with a 500 instead.
    EXPECT_THAT(waiting.read_answer(), is_json_error(500));
  }
  RawClient idle = client();
  idle.send(post("/keep", "{}"));
  HttpResponder a = take();
  idle.close();
  EXPECT_TRUE(wait_for_disconnects(1));
  EXPECT_TRUE(a.disconnected());
  EXPECT_FALSE(a.respond({}));
  RawClient streaming = client();
  HttpResponder b = stream_to(streaming);
  streaming.close();
  EXPECT_TRUE(wait_for_disconnects(2));
  EXPECT_FALSE(b.write("data: 2\n\n"));
  bool called = false;
  b.on_disconnect([&](ClientLoss why) { called = why == ClientLoss::kLeft; });
  EXPECT_TRUE(called) << "late registration";
}

TEST_F(Streaming, AClientThatDoesNotReadIsBackpressureThenCutOff) {
  settings_.write_timeout = milliseconds(200);
  start();
  RawClient c = client();
  c.send(post("/keep", "{}"));
  HttpResponder r = take();
  r.start_stream(200, "text/event-stream");
  const std::string piece(100'000, 'x');
  size_t taken = 0;
  size_t refused = 0;
  for (int i = 0; i < 10'000 && !r.disconnected(); ++i) {
    (r.write(piece) ? taken : refused) += 1;
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GT(refused, 0u);
  // The queue and what the kernel buffers on both ends, no more.
  EXPECT_LT(taken * piece.size(), 32u << 20);
  EXPECT_TRUE(wait_for_disconnects(1));
  EXPECT_TRUE(r.disconnected());
  EXPECT_EQ(loss_, ClientLoss::kDoesNotRead);
}

// As `printf … | nc -N` does. What is ready is delivered; nobody goes on computing the rest.
TEST_F(Streaming, AClientThatShutsItsSendingSideGetsWhatIsReady) {
  start();
  for (int i = 0; i < 50; ++i) {  // with the answer still on its way to the connection
    RawClient c = client();
    c.send(get("/hello") + get("/hello"));
    c.shut_sending();
    EXPECT_THAT(c.read_answer(), AllOf(answers(200), EndsWith("hello")));
    EXPECT_THAT(c.read_answer(), AllOf(answers(200), EndsWith("hello")));
    EXPECT_EQ(c.read_all(), "");
  }
  RawClient malformed = client();
  malformed.send("nonsense\r\n\r\n");
  malformed.shut_sending();
  EXPECT_THAT(malformed.read_answer(), is_json_error(400));
  RawClient waiting = client();
  waiting.send(post("/keep", "{}"));
  HttpResponder a = take();
  waiting.shut_sending();
  EXPECT_TRUE(wait_for_disconnects(1));
  EXPECT_THAT(waiting.read_all(), AllOf(is_json_error(499), HasSubstr("nc: without -N")));
  RawClient streaming = client();
  HttpResponder b = stream_to(streaming);
  streaming.shut_sending();
  EXPECT_TRUE(wait_for_disconnects(2));
  EXPECT_EQ(streaming.read_all(), "") << "without the end of the body";
  EXPECT_EQ(loss_, ClientLoss::kLeft);
}

TEST_F(Streaming, AbortShowsAsAnIncompleteBody) {
  start();
  RawClient c = client();
  c.send(post("/keep", "{}"));
  HttpResponder r = take();
  r.start_stream(200, "text/event-stream");
  r.write("data: 1\n\n");
  EXPECT_THAT(c.read_until("\n\n\r\n"), HasSubstr("data: 1"));
  r.abort();
  EXPECT_THAT(c.read_all(), Not(HasSubstr("0\r\n\r\n")));
  EXPECT_TRUE(c.ended());
}

TEST_F(Streaming, DroppedHandlersAndThrowingOnesAnswer500) {
  router_.exact("GET", "/drop", [](HttpRequest, HttpResponder) {});
  router_.exact("GET", "/throw",
                [](HttpRequest, HttpResponder) { throw std::runtime_error("boom"); });
  start();
  EXPECT_THAT(ask(get("/drop")), is_json_error(500));
  EXPECT_THAT(ask(get("/throw")), AllOf(is_json_error(500), Not(HasSubstr("boom"))));
  EXPECT_EQ(own_errors_, 2);
}

TEST_F(Streaming, WritesFromManyThreadsKeepTheirOrderAndLoseNothing) {
  settings_.threads = 2;
  start();
  constexpr int kStreams = 4;
  constexpr int kEvents = 2000;
  std::vector<RawClient> clients;
  std::vector<std::thread> writers;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(client());
    clients.back().send(post("/keep", "{}"));
    HttpResponder r = take();
    writers.emplace_back([r] {
      r.start_stream(200, "text/plain");
      for (int e = 0; e < kEvents; ++e) {
        while (!r.write("<" + std::to_string(e) + ">")) std::this_thread::yield();
      }
      r.finish();
    });
  }
  for (auto& c : clients) {
    c.read_until("\r\n\r\n");
    const std::string raw = c.read_until("0\r\n\r\n");
    std::string body;
    for (size_t at = 0; at < raw.size();) {
      const size_t eol = raw.find("\r\n", at);
      const size_t size = std::stoul(raw.substr(at, eol - at), nullptr, 16);
      body += raw.substr(eol + 2, size);
      at = eol + 2 + size + 2;
    }
    std::string expected;
    for (int e = 0; e < kEvents; ++e) expected += "<" + std::to_string(e) + ">";
    EXPECT_EQ(body, expected);
  }
  for (auto& w : writers) w.join();
}

TEST_F(Streaming, DrainFinishesWhatIsOpenAndTakesNothingNew) {
  start();
  const uint16_t port = server_->port();
  RawClient idle = client();
  idle.send(get("/hello"));
  idle.read_answer();
  RawClient busy = client();
  busy.send(post("/keep", "{}"));
  HttpResponder r = take();
  EXPECT_FALSE(server_->drain(milliseconds(50))) << "one is still open";
  EXPECT_EQ(idle.read_all(), "");
  Fd late(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_NE(::connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  r.respond({200, "text/plain", {}, "done"});
  EXPECT_THAT(busy.read_all(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("done")));
  busy.close();
  idle.close();
  EXPECT_TRUE(server_->drain(seconds(60)));
}

TEST_F(Streaming, StoppingCutsOpenStreamsAndTellsTheirOwners) {
  start();
  RawClient c = client();
  c.send(post("/keep", "{}"));
  HttpResponder r = take();
  r.start_stream(200, "text/event-stream");
  server_->stop();
  EXPECT_TRUE(wait_for_disconnects(1));
  EXPECT_EQ(loss_, ClientLoss::kCut);
  r.post([] { FAIL() << "the loop has ended"; });
  server_.reset();
  EXPECT_FALSE(r.write("x"));
  r.post([] { FAIL() << "the loop is gone"; });
}

}  // namespace
}  // namespace tandem
