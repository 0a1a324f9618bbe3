// What clients see when nodes come, go and fail.
#include <algorithm>
#include <atomic>
#include <boost/json.hpp>

#include "tests/integration/router/router_fixture.h"

namespace tandem::router::test {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(RouterTest, TheFirstTokenIsNotHeldBack) {  // failures.md 23
  boot();
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  add_speaker(words, milliseconds(50));
  const TimePoint start = kClock.now();
  std::optional<double> first;
  size_t pieces = 0;
  auto reply = client_->stream({.method = "POST",
                                .target = "/v1/chat/completions",
                                .headers = {},
                                .body = chat_body("\"max_tokens\":40,\"stream\":true")},
                               [&](std::string_view) {
                                 if (!first) first = to_seconds(kClock.now() - start);
                                 ++pieces;
                               });
  const double total = to_seconds(kClock.now() - start);
  ASSERT_TRUE(reply);
  ASSERT_TRUE(first);
  EXPECT_LT(*first, total / 2);
  EXPECT_GT(pieces, 4U);
}

TEST_F(RouterTest, ReadyFollowsTheNodes) {  // failures.md 26
  boot();
  EXPECT_EQ(get("/health/ready").status, 503);
  EXPECT_EQ(get("/health/live").status, 200);
  add_speaker("x");
  EXPECT_EQ(get("/health/ready").status, 200);
  nodes_.clear();
  EXPECT_TRUE(wait([&] { return get("/health/ready").status == 503; }));
  const json::value status = json::parse(get("/status").body);
  EXPECT_EQ(status.at("nodes").at(0).at("state").as_string(), "lost");
}

// A stream during which its node dies: the node stops in the middle of its answer, and when the
// client has some of it `meanwhile` runs on another thread.
class DyingNode : public RouterTest {
 protected:
  HttpReply chat_while(const std::string& words, const std::function<void()>& meanwhile) {
    FakeNodeOptions options;
    options.token_time = milliseconds(1);
    options.hold_after = 20;
    options.script = [words](const control::Task& task) { return speak(task, words); };
    add_node(std::move(options));
    std::atomic<bool> begun = false;
    std::thread other([&] {
      EXPECT_TRUE(wait([&] { return begun.load(); }));
      meanwhile();
    });
    HttpReply whole;
    auto reply = client_->stream({.method = "POST",
                                  .target = "/v1/chat/completions",
                                  .headers = {},
                                  .body = chat_body("\"max_tokens\":500,\"stream\":true")},
                                 [&](std::string_view piece) {
                                   whole.body += piece;
                                   // The role, in an event of its own, and three pieces of text.
                                   begun = std::ranges::count(whole.body, '\n') >= 2 * 4;
                                 });
    begun = true;
    other.join();
    EXPECT_TRUE(reply);
    whole.status = reply ? reply->status : 0;
    return whole;
  }
  static std::string numbered_words() {
    std::string words;
    for (int i = 0; i < 60; ++i) words += "w" + std::to_string(i) + " ";
    return words;
  }
};

TEST_F(DyingNode, ADecodeNodesDeathIsAPause) {
  boot();
  const std::string words = numbered_words();
  const HttpReply reply = chat_while(words, [&] {
    FakeNodeOptions options;
    options.id = "decode-1";
    options.token_time = milliseconds(1);
    options.script = [words](const control::Task& task) { return speak(task, words); };
    identify(options);
    auto other = std::make_unique<FakeNode>(router_->control_port(), std::move(options), kClock,
                                            Logger(*sink_, LogLevel::kInfo));
    EXPECT_TRUE(wait([&] { return other->admitted(); }));
    nodes_[0].reset();
    nodes_[0] = std::move(other);
  });
  EXPECT_EQ(joined(reply), words);
  EXPECT_EQ(events(reply).back(), "[DONE]");
  EXPECT_EQ(json::parse(get("/status").body).at("requests").at("resumes").as_int64(), 1);
}

TEST_F(DyingNode, AFailureAfterTheFirstTokenIsACleanErrorEvent) {
  boot("  admission: {max_retries: 0}\n");
  const HttpReply reply = chat_while(numbered_words(), [&] { nodes_[0].reset(); });
  nodes_.clear();
  EXPECT_EQ(reply.status, 200);
  const std::vector<std::string> all = events(reply);
  EXPECT_TRUE(json::parse(all.back()).as_object().contains("error")) << all.back();
}

TEST_F(RouterTest, AWrongNodeIsRefusedInPlainWords) {
  boot();
  FakeNodeOptions options;
  identify(options);
  options.model_fingerprint = "0000";
  FakeNode node(router_->control_port(), std::move(options), kClock,
                Logger(*sink_, LogLevel::kInfo));
  EXPECT_TRUE(wait([&] { return !node.refusal().empty(); }));
  EXPECT_NE(node.refusal().find("model fingerprint is 0000 on decode-0 but"), std::string::npos)
      << node.refusal();
  EXPECT_EQ(get("/health/ready").status, 503);
}

}  // namespace
}  // namespace tandem::router::test
