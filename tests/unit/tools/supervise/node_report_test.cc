// The page that a node serves, read by its supervisor.
#include "tools/supervise/node_report.h"

#include <gmock/gmock.h>

#include "common/node/node_health.h"
#include "tests/unit/net/http_test_support.h"
#include "tools/client/http_fetch.h"

namespace tandem::supervise {
namespace {

using node::Registration;

class NodeReports : public HttpServerTest {
 protected:
  NodeReports() { health_.serve(router_); }

  Result<NodeReport> ask() {
    if (!server_) start();
    auto fetcher = client::HttpFetcher::create(
        {.url = "http://127.0.0.1:" + std::to_string(server_->port()), .api_key = {}});
    if (!fetcher) return fail(fetcher.error());
    return ask_node(**fetcher);
  }

  node::NodeHealth health_{
      clock_, metrics_, {.role = "decode", .name = "d0", .router = "10.0.0.1:7001"}};
};

TEST_F(NodeReports, TellHowANodeStandsWithItsRouter) {
  NodeReport report = ask().value();
  EXPECT_EQ(report.state, "starting");
  EXPECT_EQ(describe(report), "not registered yet with the router at 10.0.0.1:7001");
  health_.passed_self_test();
  health_.registration(Registration::kUnreachable, "Connection refused");
  report = ask().value();
  EXPECT_EQ(report.state, "waiting");
  EXPECT_TRUE(report.unreachable());
  EXPECT_EQ(describe(report), "cannot reach the router at 10.0.0.1:7001: Connection refused");
  health_.registration(Registration::kRegistered);
  report = ask().value();
  EXPECT_TRUE(report.ready());
  EXPECT_FALSE(report.unreachable() || report.refused() || report.lasting);
  EXPECT_EQ(describe(report), "registered with the router at 10.0.0.1:7001");
  health_.draining();
  EXPECT_EQ(ask().value().state, "draining");
}

TEST_F(NodeReports, TellWhetherARefusalLasts) {
  health_.registration(Registration::kRefused, "the name is taken \"now\"");
  NodeReport report = ask().value();
  EXPECT_TRUE(report.refused() && !report.lasting);
  EXPECT_EQ(describe(report), "refused by the router at 10.0.0.1:7001: the name is taken \"now\"");
  health_.registration(Registration::kRefused, "another model", /*lasting=*/true);
  report = ask().value();
  EXPECT_TRUE(report.refused() && report.lasting);
  health_.registration(Registration::kNotYet);
  EXPECT_FALSE(ask().value().lasting);
}

class OtherPages : public HttpServerTest {
 protected:
  OtherPages() {
    router_.exact("GET", "/status", [this](HttpRequest, HttpResponder r) {
      r.respond({200, "application/json", {}, body_.load()});
    });
  }
  std::atomic<const char*> body_ = "";
};

TEST_F(OtherPages, AreNoNodes) {
  start();
  const auto fetcher = client::HttpFetcher::create(
      {.url = "http://127.0.0.1:" + std::to_string(server_->port()), .api_key = {}});
  ASSERT_TRUE(fetcher);
  for (const char* body : {"{}", "[]", "no", R"({"state": "ready"})", R"({"router": {}})",
                           R"({"state": 1, "router": {}})", R"({"state": "ready", "router": 1})"}) {
    body_ = body;
    const auto report = ask_node(**fetcher);
    ASSERT_FALSE(report) << body;
    EXPECT_EQ(report.error().code, ErrorCode::kUnavailable) << body;
  }
}

}  // namespace
}  // namespace tandem::supervise
