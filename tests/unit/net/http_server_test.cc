#include "common/net/http_server.h"

#include <gmock/gmock.h>

#include <future>
#include <optional>

#include "common/net/io_thread.h"
#include "tests/unit/net/http_test_support.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  start();
  RawClient c = client();
  for (int i = 0; i < 3; ++i) {
    c.send(get("/hello"));
    EXPECT_THAT(c.read_answer(), AllOf(answers(200), HasSubstr("Content-Type: text/plain\r\n"),
                                       HasSubstr("Date: "), HasSubstr("X-Request-Id: req-"),
                                       Not(HasSubstr("Connection:")), EndsWith("\r\n\r\nhello")));
  }
}

TEST_F(HttpServerTest, ClosesWhenAskedToAndForHttp10) {
  start();
  RawClient a = client();
  a.send(get("/hello", "Connection: close\r\n"));
  EXPECT_THAT(a.read_all(),
              AllOf(answers(200), HasSubstr("Connection: close\r\n"), EndsWith("hello")));
  RawClient b = client();
  b.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_THAT(b.read_all(), AllOf(answers(200), EndsWith("hello")));
  RawClient c = client();
  c.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(c.read_answer(), AllOf(answers(200), HasSubstr("Connection: keep-alive\r\n")));
  c.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_THAT(c.read_all(), answers(200));
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  RawClient c = client();
  std::string all;
  for (int i = 0; i < 50; ++i) all += post("/echo", "body " + std::to_string(i)) + "\r\n";
  c.send(all);
  for (int i = 0; i < 50; ++i)
    EXPECT_THAT(c.read_answer(), EndsWith("\r\n\r\nbody " + std::to_string(i)));
}

TEST_F(HttpServerTest, ChunkedBodiesArriveWholeHoweverTheyAreCut) {
  start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(ask(head + "5\r\nhello\r\n0\r\n\r\n"),
              AllOf(answers(200), EndsWith("\r\n\r\nhello")));
  EXPECT_THAT(ask(head + "5;name=\"va;lue\"\r\nhello\r\n1 ; a\r\n!\r\n0\r\n\r\n"),
              EndsWith("\r\n\r\nhello!"));
  EXPECT_THAT(ask(head + "5\r\nhello\r\n0\r\nX-Trailer: 1\r\nX-Request-Id: forged\r\n\r\n"),
              AllOf(answers(200), Not(HasSubstr("forged")), EndsWith("\r\n\r\nhello")));
  std::string one_by_one = head;
  for (const char c : std::string("{\"a\": 1}")) one_by_one += std::string("1\r\n") + c + "\r\n";
  RawClient slow = client();
  for (const char c : one_by_one + "0\r\n\r\n") slow.send({&c, 1});
  EXPECT_THAT(slow.read_answer(), EndsWith("\r\n\r\n{\"a\": 1}"));
  // The connection is in step afterwards.
  slow.send(get("/hello"));
  EXPECT_THAT(slow.read_answer(), EndsWith("hello"));
}

TEST_F(HttpServerTest, BadFramingIs400AndTheConnectionEnds) {
  start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  for (const std::string& request : {
           head + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
           head + "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
           head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
           head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
           head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
           head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
           head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
           head + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
           head + "Content-Length: -1\r\n\r\n",
           head + "Content-Length: 5x\r\n\r\nhello",
           head + "Content-Length: 99999999999999999999\r\n\r\n",
           head + "Content-Length : 5\r\n\r\nhello",
           head + "Host: y\r\nContent-Length: 0\r\n\r\n",
           std::string("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
           std::string("GET /hello HTTP/1.1\r\n\r\n"),
           std::string("GET  HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("GET hello HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("GET /a%zz HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("GET /a%0d%0aX:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("GET /a%00 HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n"),
           std::string("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"),
           "GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n"s,
           "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"s,
           "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"s,
           "\x00\x01\x02\x03\xff\xfe\r\n\r\n"s,
           std::string("hello\r\n\r\n"),
       }) {
    RawClient c = client();
    c.send(request);
    EXPECT_THAT(c.read_all(), AllOf(is_json_error(400), HasSubstr("Connection: close\r\n")))
        << request;
  }
  EXPECT_THAT(ask("GET / HTTP/3.0\r\nHost: x\r\n\r\n"), is_json_error(505));
  EXPECT_THAT(ask(head + "Transfer-Encoding: gzip, chunked\r\n\r\n"), is_json_error(501));
  EXPECT_THAT(ask(head + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"),
              is_json_error(415));
  EXPECT_THAT(ask(head + "Expect: magic\r\nContent-Length: 1\r\n\r\nx"), is_json_error(417));
  EXPECT_THAT(ask(get("/hello")), answers(200));
}

TEST_F(HttpServerTest, LimitsAreToldWithTheirStatus) {
  settings_.max_body = kib(64);
  settings_.max_header = kib(4);
  start();
  EXPECT_THAT(ask(post("/echo", std::string(64 << 10, 'x'))), answers(200));
  EXPECT_THAT(
      ask(post("/echo", std::string((64 << 10) + 1, 'x'), "Origin: http://a\r\n")),
      AllOf(is_json_error(413), HasSubstr("64KiB"), HasSubstr("Access-Control-Allow-Origin: *")));
  std::string chunks = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunks += "1000\r\n" + std::string(4096, 'x') + "\r\n";
  EXPECT_THAT(ask(chunks + "0\r\n\r\n"), is_json_error(413));
  EXPECT_THAT(ask(get("/" + std::string(5000, 'a'))), is_json_error(431));
  EXPECT_THAT(ask(get("/hello", "A: " + std::string(5000, 'a') + "\r\n")), is_json_error(431));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "H" + std::to_string(i) + ": v\r\n";
  EXPECT_THAT(ask(get("/hello", many)), is_json_error(431));
  RawClient endless = client();
  endless.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;");
  for (int i = 0; i < 40 && endless.send(std::string(4096, 'e')); ++i) {
  }
  EXPECT_THAT(endless.read_answer(), is_json_error(400));
}

TEST_F(HttpServerTest, ARefusedUploadStillGetsItsAnswer) {
  settings_.max_body = kib(64);
  start();
  RawClient c = client();
  // Far more than socket buffers hold: without lingering the reset would eat the 413.
  c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n");
  for (int i = 0; i < 200; ++i) {
    if (!c.send(std::string(100'000, 'x'))) break;
  }
  EXPECT_THAT(c.read_all(), is_json_error(413));
}

TEST_F(HttpServerTest, ExpectContinueIsAnsweredBeforeTheBody) {
  start();
  RawClient c = client();
  c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(c.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  c.send("ok");
  EXPECT_THAT(c.read_answer(), AllOf(answers(200), EndsWith("ok")));
  settings_.max_body = kib(1);
  server_.reset();
  start();
  RawClient d = client();
  d.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(d.read_answer(), answers(413)) << "not invited to send what will be refused";
}

TEST_F(HttpServerTest, PathsAreDecodedAndUnknownOnesAre404) {
  start();
  EXPECT_THAT(ask(get("/v1/models/org/name%20v1?x=1")), EndsWith("\r\n\r\norg/name v1?x=1"));
  EXPECT_THAT(ask(get("/v1/models/org%2Fname%20v1")), EndsWith("\r\n\r\norg/name v1?"));
  EXPECT_THAT(ask(get("http://some.host:80/v1/models/m?y")), EndsWith("\r\n\r\nm?y"));
  EXPECT_THAT(ask(get("/v1/models/")), is_json_error(404));
  EXPECT_THAT(ask(get("//v1/models/a")), is_json_error(404));
  EXPECT_THAT(ask(get("/nope")), is_json_error(404));
  EXPECT_THAT(ask(get("/hello/")), is_json_error(404));
  EXPECT_THAT(ask(get("/")), is_json_error(404));
}

TEST_F(HttpServerTest, MethodsAreCheckedPerPath) {
  start();
  EXPECT_THAT(ask(get("/echo")), AllOf(is_json_error(405), HasSubstr("Allow: POST, OPTIONS\r\n")));
  EXPECT_THAT(ask(post("/hello", "")),
              AllOf(is_json_error(405), HasSubstr("Allow: GET, HEAD, OPTIONS\r\n")));
  EXPECT_THAT(ask("BREW /hello HTTP/1.1\r\nHost: x\r\n\r\n"), is_json_error(405));
  EXPECT_THAT(ask("OPTIONS /hello HTTP/1.1\r\nHost: x\r\n\r\n"),
              AllOf(answers(204), HasSubstr("Allow: GET, HEAD, OPTIONS\r\n"),
                    Not(HasSubstr("Content-Length"))));
  EXPECT_THAT(ask("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), answers(204));
  RawClient c = client();
  c.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n" + get("/hello"));
  const std::string head = c.read_until("\r\n\r\n");
  EXPECT_THAT(head, AllOf(answers(200), HasSubstr("Content-Length: 5\r\n")));
  EXPECT_THAT(c.read_answer(), AllOf(answers(200), EndsWith("\r\n\r\nhello")))
      << "HEAD had no body";
}

TEST_F(HttpServerTest, PreflightsNeedNoKeyAndErrorsCarryCorsHeaders) {
  start();
  const std::string preflight =
      "OPTIONS /echo HTTP/1.1\r\nHost: x\r\nOrigin: http://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
      "authorization,content-type\r\n\r\n";
  EXPECT_THAT(ask(preflight),
              AllOf(answers(204), HasSubstr("Access-Control-Allow-Origin: *\r\n"),
                    HasSubstr("Access-Control-Allow-Methods: GET, POST"),
                    HasSubstr("Access-Control-Allow-Headers: authorization,content-type\r\n")));
  EXPECT_THAT(ask(get("/nope", "Origin: http://a.example\r\n")),
              AllOf(is_json_error(404), HasSubstr("Access-Control-Allow-Origin: *\r\n")));
  EXPECT_THAT(ask(get("/hello")), Not(HasSubstr("Access-Control")));
  settings_.cors_origins = {"http://good.example"};
  server_.reset();
  start();
  EXPECT_THAT(ask(get("/hello", "Origin: http://good.example\r\n")),
              AllOf(HasSubstr("Access-Control-Allow-Origin: http://good.example\r\n"),
                    HasSubstr("Vary: Origin")));
  EXPECT_THAT(ask(get("/hello", "Origin: http://evil.example\r\n")),
              Not(HasSubstr("Access-Control-Allow-Origin")));
  EXPECT_THAT(ask(preflight), Not(HasSubstr("Access-Control-Allow-Origin")));
}

TEST_F(HttpServerTest, RequestIdsAreKeptIfDecentAndHeadersCannotBeInjected) {
  router_.exact("GET", "/inject", [](HttpRequest, HttpResponder r) {
    r.respond({200, "text/plain", {{"X-A", "b\r\nSet-Cookie: c"}}, ""});
  });
  start();
  EXPECT_THAT(ask(get("/hello", "X-Request-Id: abc-1\r\n")), HasSubstr("X-Request-Id: abc-1\r\n"));
  EXPECT_THAT(ask(get("/hello", "X-Request-Id: <script>\r\n")), Not(HasSubstr("script")));
  EXPECT_THAT(ask(get("/inject")),
              AllOf(Not(HasSubstr("\r\nSet-Cookie")), HasSubstr("X-A: b  Set-Cookie: c\r\n")));
}

TEST_F(HttpServerTest, SlowClientsAreCutOff) {
  settings_.header_timeout = milliseconds(500);
  settings_.body_timeout = milliseconds(500);
  settings_.idle_timeout = milliseconds(1000);
  start();
  RawClient silent = client();
  EXPECT_EQ(silent.read_all(), "");
  RawClient slow_head = client();
  slow_head.send("GET /hello HTTP/1.1\r\nHo");
  EXPECT_THAT(slow_head.read_all(), AllOf(is_json_error(408), HasSubstr("headers")));
  RawClient slow_body = client();
  slow_body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_THAT(slow_body.read_all(), AllOf(is_json_error(408), HasSubstr("body")));
  RawClient idle = client();
  const TimePoint before = clock_.now();
  idle.send(get("/hello"));
  EXPECT_THAT(idle.read_answer(), answers(200));
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_GT(to_seconds(clock_.now() - before), 0.9);
}

TEST_F(HttpServerTest, ConnectionsOverTheLimitAreToldAtOnce) {
  settings_.max_connections = 2;
  start();
  RawClient a = client();
  RawClient b = client();
  a.send(get("/hello"));
  b.send(get("/hello"));
  EXPECT_THAT(a.read_answer(), answers(200));
  EXPECT_THAT(b.read_answer(), answers(200));
  RawClient c = client();
  c.send(get("/hello"));
  EXPECT_THAT(c.read_all(), is_json_error(503));
  a.close();
  for (int i = 0; i < 100; ++i) {
    RawClient d = client();
    d.send(get("/hello"));
    if (d.read_answer().starts_with("HTTP/1.1 200")) return;
    std::this_thread::sleep_for(milliseconds(20));
  }
  FAIL() << "the place was not given back";
}

TEST_F(HttpServerTest, RunsOnALoopThatItShares) {
  IoThread loop("shared");
  settings_.threads = 0;
  std::optional<HttpResponder> kept;
  auto server = HttpServer::create(settings_,
                                   [&](const HttpRequest& q, HttpResponder r) {
                                     EXPECT_TRUE(loop.on_thread());
                                     if (q.path == "/keep") {
                                       kept.emplace(std::move(r));
                                     } else {
                                       r.respond({200, "text/plain", {}, "hello"});
                                     }
                                   },
                                   {.clock = clock_,
                                    .log = Logger(sink_, LogLevel::kError),
                                    .metrics = metrics_,
                                    .shared_loop = &loop});
  ASSERT_TRUE(server) << server.error().detail;
  loop.start();
  RawClient a((*server)->port());
  a.send(get("/hello"));
  EXPECT_THAT(a.read_answer(), AllOf(answers(200), EndsWith("hello")));
  RawClient b((*server)->port());
  b.send(get("/keep"));
  a.send(get("/hello"));  // behind it on the loop
  EXPECT_THAT(a.read_answer(), answers(200));
  (*server)->stop();
  EXPECT_EQ(b.read_all(), "");
  ASSERT_TRUE(kept);
  EXPECT_TRUE(kept->disconnected());
  kept->post([] { ADD_FAILURE() << "the server has stopped"; });
  std::promise<void> still;
  loop.post([&] { still.set_value(); });
  EXPECT_EQ(still.get_future().wait_for(seconds(10)), std::future_status::ready);
  kept.reset();
  loop.stop();
}

TEST_F(HttpServerTest, WhatCannotListenSaysWhy) {
  start();
  HttpSettings taken = settings_;
  taken.port = server_->port();
  const auto again = HttpServer::create(taken, [](HttpRequest, HttpResponder) {},
                                        {clock_, Logger(sink_, LogLevel::kError), metrics_});
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().detail, HasSubstr("another process does"));
  HttpSettings tls = settings_;
  tls.tls = {"/nonexistent.crt", "/nonexistent.key"};
  const auto no_certificate = HttpServer::create(
      tls, [](HttpRequest, HttpResponder) {}, {clock_, Logger(sink_, LogLevel::kError), metrics_});
  ASSERT_FALSE(no_certificate);
  EXPECT_THAT(no_certificate.error().detail, HasSubstr("/nonexistent.crt"));
}

}  // namespace
}  // namespace tandem
