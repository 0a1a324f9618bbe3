// What the router tells about itself: metrics and the status document.
#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <cstdlib>
#include <map>

#include "common/obs/metrics.h"
#include "router/cluster/router_metrics.h"
#include "tests/integration/router/router_fixture.h"

namespace tandem::router::test {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

// One sample line of the text format, taken apart strictly; false if it is not one.
bool parse_sample(const std::string& line, std::string& name, std::string& labels, double& value) {
  size_t at = 0;
  auto word = [&](std::string& out) {
    const size_t begin = at;
    while (at < line.size() && (std::isalnum(static_cast<unsigned char>(line[at])) != 0 ||
                                line[at] == '_' || line[at] == ':'))
      ++at;
    out = line.substr(begin, at - begin);
    return !out.empty() && std::isdigit(static_cast<unsigned char>(out[0])) == 0;
  };
  if (!word(name)) return false;
  labels.clear();
  if (at < line.size() && line[at] == '{') {
    const size_t begin = at++;
    while (line[at] != '}') {
      std::string key;
      if (!word(key) || line.compare(at, 2, "=\"") != 0) return false;
      for (at += 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') continue;
        if (++at >= line.size() ||
            std::string_view("\\\"n").find(line[at]) == std::string_view::npos)
          return false;
      }
      if (++at >= line.size()) return false;
      if (line[at] == ',') ++at;
    }
    labels = line.substr(begin, ++at - begin);
  }
  if (at >= line.size() || line[at] != ' ') return false;
  char* end = nullptr;
  value = std::strtod(line.c_str() + at + 1, &end);
  return end == line.c_str() + line.size();
}

// Names, label escapes, buckets that grow and end in +Inf = count.
void expect_strict_exposition(const std::string& text) {
  std::string bucket_series;
  double last = 0;
  std::map<std::string, double> infinite;
  std::map<std::string, double> counts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    ASSERT_NE(end, text.npos);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty() || line[0] == '#') continue;
    std::string name;
    std::string labels;
    double value = 0;
    ASSERT_TRUE(parse_sample(line, name, labels, value)) << line;
    const size_t le = labels.find("le=\"");
    if (name.ends_with("_bucket") && le != labels.npos) {
      const std::string series = name + labels.substr(0, le);
      if (series != bucket_series) last = 0;
      bucket_series = series;
      EXPECT_GE(value, last) << line;
      last = value;
      if (labels.find("le=\"+Inf\"") != labels.npos)
        infinite[name.substr(0, name.size() - 7)] += value;
    }
    if (name.ends_with("_count")) counts[name.substr(0, name.size() - 6)] += value;
  }
  EXPECT_FALSE(infinite.empty());
  for (const auto& [name, value] : infinite) EXPECT_EQ(counts[name], value) << name;
}

TEST_F(RouterTest, MetricsStayReadableAndBounded) {  // case 37
  boot();
  add_speaker("x");
  chat("");
  EXPECT_EQ(post("/v1/chat/completions",
                 R"({"model":"a\"b\\c\nd","messages":[{"role":"user","content":"x"}]})")
                .status,
            404);
  const HttpReply before = get("/metrics");
  expect_strict_exposition(before.body);
  for (int i = 0; i < 1000; ++i) {
    post("/v1/chat/completions",
         R"({"model":"m)" + std::to_string(i) + R"(","messages":[{"role":"user","content":"x"}]})");
  }
  const HttpReply after = get("/metrics");
  expect_strict_exposition(after.body);
  auto lines = [](const std::string& s) { return std::count(s.begin(), s.end(), '\n'); };
  EXPECT_LE(lines(after.body), lines(before.body) + 40);
  EXPECT_EQ(after.body.find("m999"), after.body.npos);
  for (const auto& [key, value] : after.headers) {
    if (equal_ignoring_case(key, "Content-Type")) {
      EXPECT_EQ(value.rfind("text/plain", 0), 0U);
    }
  }
  for (const char* name : {"tandem_router_ttft_seconds_count 1", "tandem_router_queue_depth 0",
                           "tandem_router_requests_total{route=\"chat\",status=\"404\"} 1001"}) {
    EXPECT_NE(after.body.find(name), after.body.npos) << name;
  }
}

// A scrape must show every answer, also those that never reached an endpoint.
TEST_F(RouterTest, RefusalsOfTheHttpServerAreCountedAsRequests) {
  boot(
      "  http: {port: 0, max_body: 4KiB, max_header: 2KiB, header_timeout: 1s, body_timeout: "
      "1s}\n");
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(raw({"nonsense\r\n\r\n"}).substr(0, 12), "HTTP/1.1 400");
  EXPECT_EQ(raw({head + "Content-Length: 9999\r\n\r\n"}).substr(0, 12), "HTTP/1.1 413");
  EXPECT_EQ(raw({head + "X-Long: " + std::string(3000, 'x') + "\r\n\r\n"}).substr(0, 12),
            "HTTP/1.1 431");
  EXPECT_EQ(raw({head}).substr(0, 12), "HTTP/1.1 408");
  EXPECT_EQ(raw({head + "Content-Length: 9\r\n\r\nabc"}).substr(0, 12), "HTTP/1.1 408");
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(get("/v1/completions").status, 405);
  const std::string metrics = get("/metrics").body;
  for (const char* series :
       {"refused\",status=\"400\"} 1", "refused\",status=\"413\"} 1", "refused\",status=\"431\"} 1",
        "refused\",status=\"408\"} 2", "refused\",status=\"503\"} 0", "none\",status=\"404\"} 1",
        "none\",status=\"405\"} 1"}) {
    const std::string line = "tandem_router_requests_total{route=\"" + std::string(series);
    EXPECT_NE(metrics.find(line + "\n"), metrics.npos) << line << "\n" << metrics;
  }
}

TEST_F(RouterTest, ConnectionsOverTheLimitAreCountedAsRequests) {
  boot("  http: {port: 0, max_connections: 1}\n");
  get("/health/live");  // this client keeps its connection
  EXPECT_EQ(raw({"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"}).substr(0, 12), "HTTP/1.1 503");
  EXPECT_EQ(metric("tandem_router_requests_total{route=\"refused\",status=\"503\"}"), 1);
  EXPECT_EQ(metric("tandem_http_requests_total{method=\"other\",status=\"5xx\"}"), 1);
}

// Overload and failures are told apart: one is answered by more nodes, the other by their logs.
TEST_F(RouterTest, WhatAFullQueueRefusesHasNotFailed) {
  boot("  admission: {prefill_queue: 1, deadline: 60s}\n");
  const std::string body = chat_body("");
  const std::string waiting = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  raw({waiting}, [&](const std::string&) {
    if (metric("tandem_router_queue_depth") != 1) return false;
    EXPECT_EQ(chat("").status, 429);
    return true;
  });
  EXPECT_TRUE(wait([&] { return metric("tandem_router_choices_cancelled_total") == 1; }));
  EXPECT_EQ(metric("tandem_router_choices_submitted_total"), 2);
  EXPECT_EQ(metric("tandem_router_choices_rejected_total"), 1);
  EXPECT_EQ(metric("tandem_router_queue_rejections_total"), 1);
  EXPECT_EQ(metric("tandem_router_choices_failed_total"), 0);
  EXPECT_EQ(metric("tandem_router_requests_total{route=\"chat\",status=\"429\"}"), 1);
  const json::value requests = json::parse(get("/status").body).at("requests");
  EXPECT_EQ(requests.at("total").as_int64(), 2);
  EXPECT_EQ(requests.at("rejected").as_int64(), 1);
  EXPECT_EQ(requests.at("left").as_int64(), 1);
  EXPECT_EQ(requests.at("failed").as_int64(), 0);
}

// Failures are what was taken and then went wrong.
TEST_F(RouterTest, WhatWasTakenAndEndsInAnErrorHasFailed) {
  boot("  admission: {deadline: 50ms}\n");
  EXPECT_EQ(chat("").status, 503);  // no node
  EXPECT_TRUE(wait([&] { return metric("tandem_router_choices_failed_total") == 1; }));
  EXPECT_EQ(metric("tandem_router_choices_rejected_total"), 0);
  EXPECT_EQ(json::parse(get("/status").body).at("requests").at("failed").as_int64(), 1);
}

TEST_F(RouterTest, EveryKnownStatusIsThereBeforeItsFirstAnswer) {
  boot();
  for (const char* series : {"tandem_router_requests_total{route=\"chat\",status=\"499\"}",
                             "tandem_router_requests_total{route=\"refused\",status=\"408\"}",
                             "tandem_router_requests_total{route=\"none\",status=\"404\"}",
                             "tandem_router_dispatch_total{way=\"local_deadline\"}",
                             "tandem_router_transfer_seconds_count{transport=\"ucx\"}",
                             "tandem_router_request_seconds_count{route=\"completions\"}",
                             "tandem_http_rejected_total{reason=\"write_timeout\"}",
                             "tandem_control_rejected_total{reason=\"unauthenticated\"}"}) {
    EXPECT_EQ(metric(series), 0) << series;
  }
}

// Streamed or whole, in the queue or in mid-answer, closed or only half closed.
TEST_F(RouterTest, ClientsThatLeaveAreCountedAndLogged) {
  boot("  admission: {deadline: 60s}\n");
  const auto ask = [&](const std::string& id, bool stream) {
    const std::string body = chat_body(stream ? "\"max_tokens\":9,\"stream\":true" : "");
    return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + id +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  };
  int left = 0;
  const auto expect_line = [&](const std::string& id, int64_t tokens) {
    ++left;
    EXPECT_TRUE(wait([&] {
      return metric("tandem_router_requests_total{route=\"chat\",status=\"499\"}") == left;
    })) << id;
    EXPECT_EQ(metric("tandem_router_client_disconnects_total"), left) << id;
    const std::string line = request_line(id);
    ASSERT_NE(line, "") << id;
    const json::value entry = json::parse(line);
    EXPECT_EQ(entry.at("status").as_int64(), 499);
    EXPECT_EQ(entry.at("outcome").as_string(), "the client left");
    EXPECT_EQ(entry.at("completion_tokens").as_int64(), tokens);
  };
  const auto queued = [&](const std::string&) { return metric("tandem_router_queue_depth") == 1; };
  raw({ask("queued-stream", true)}, queued);
  expect_line("queued-stream", 0);
  // The depth is published at times only: the next one must not take this one's for its own.
  EXPECT_TRUE(wait([&] { return metric("tandem_router_queue_depth") == 0; }));
  raw({ask("queued-whole", false)}, queued);
  expect_line("queued-whole", 0);
  const std::string told = raw({ask("half-closed", false), std::string(kShutSending)});
  EXPECT_EQ(told.substr(0, 12), "HTTP/1.1 499");
  expect_line("half-closed", 0);

  FakeNodeOptions options;
  options.hold_after = 3;
  options.token_time = milliseconds(1);
  options.script = [](const control::Task& task) { return speak(task, "one two three four five"); };
  FakeNode& node = add_node(std::move(options));
  const auto between_tokens = [&] { return metric("tandem_router_itl_seconds_count"); };
  raw({ask("streamed", true)}, [&](const std::string&) { return between_tokens() == 2; });
  expect_line("streamed", 3);
  EXPECT_EQ(metric("tandem_router_output_tokens_total"), 3) << "they had been sent";
  raw({ask("whole", false)}, [&](const std::string&) { return between_tokens() == 4; });
  expect_line("whole", 3);
  EXPECT_EQ(metric("tandem_router_output_tokens_total"), 3) << "nothing of this one was";
  EXPECT_TRUE(wait([&] { return node.running() == 0; }));
  EXPECT_TRUE(wait([&] { return metric("tandem_router_choices_cancelled_total") == left; }));
  EXPECT_EQ(metric("tandem_router_choices_failed_total"), 0);
}

TEST(RouterMetrics, ALostNodeShowsNeitherLoadNorBreaker) {
  MetricsRegistry registry;
  RouterMetrics metrics(registry);
  ClusterSnapshot snapshot;
  NodeStatus& node = snapshot.nodes.emplace_back();
  node.id = "decode-0";
  node.breaker = BreakerState::kOpen;
  node.running = 7;
  metrics.publish(snapshot);
  const std::string breaker = "tandem_router_breaker_state{node=\"decode-0\"} ";
  EXPECT_NE(registry.exposition().find(breaker + "2\n"), std::string::npos);
  metrics.publish({});
  const std::string after = registry.exposition();
  EXPECT_NE(after.find(breaker + "0\n"), after.npos) << after;
  EXPECT_NE(after.find("tandem_router_node_requests{node=\"decode-0\",state=\"running\"} 0\n"),
            after.npos);
}

TEST_F(RouterTest, StatusIsTheDocumentedDocument) {
  boot();
  add_speaker("one two three", milliseconds(2));
  for (int i = 0; i < 3; ++i) chat("\"max_tokens\":9");
  ASSERT_TRUE(wait([&] {
    const json::value s = json::parse(get("/status").body);
    return !s.at("history").as_array().empty() && !s.at("latency").at("ttft").at("p50").is_null();
  }));
  const json::value s = json::parse(get("/status").body);
  EXPECT_TRUE(s.at("ready").as_bool());
  EXPECT_EQ(s.at("requests").at("total").as_int64(), 3);
  EXPECT_EQ(s.at("nodes").at(0).at("kv").at("total").as_int64(), 4096);
  EXPECT_EQ(s.at("model").at("id").as_string(), "chat-6m");
  EXPECT_EQ(s.at("queues").at("prefill").at("capacity").as_int64(), 256);
}

}  // namespace
}  // namespace tandem::router::test
