// Which nodes a router admits and how it shares work among them: scripted nodes, simulated time.
#include <gtest/gtest.h>

#include <limits>

#include "common/proto/versions.h"
#include "tests/sim/router_sim.h"

namespace tandem::router::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Nodes, AMismatchIsRefusedInPlainWords) {  // failures.md 17, 26
  Pair c;
  FakeNode other(c, kDecode, "decode-1");
  other.hello.mutable_compatibility()->set_kv_block_tokens(32);
  const control::Welcome welcome = other.connect();
  EXPECT_FALSE(welcome.admitted());
  EXPECT_NE(welcome.reason().find("KV block size is 32 on decode-1 but 16 on"), std::string::npos)
      << welcome.reason();
  FakeNode failed(c, kDecode, "decode-2");
  failed.hello.set_self_test_passed(false);
  EXPECT_FALSE(failed.connect().admitted());
  EXPECT_EQ(c.dispatcher->snapshot()->nodes.size(), 2U);
}

TEST(Nodes, ARefusalLastsUnlessOtherNodesAreTheReason) {
  Pair c;
  FakeNode tiny(c, kDecode, "decode-1");
  tiny.options.kv_blocks = 0;
  control::Welcome welcome = tiny.connect();
  EXPECT_FALSE(welcome.admitted());
  EXPECT_TRUE(welcome.lasting()) << welcome.reason();
  FakeNode other(c, kDecode, "decode-2");
  other.hello.mutable_compatibility()->set_kv_format("int4");
  FakeNode twin(c, kDecode, "decode-0");
  for (FakeNode* node : {&other, &twin}) {
    welcome = node->connect();
    EXPECT_FALSE(welcome.admitted());
    EXPECT_FALSE(welcome.lasting()) << welcome.reason();
  }
  EXPECT_FALSE(FakeNode(c, kDecode, "decode-3").connect().lasting());
}

TEST(Nodes, AnotherReleaseIsRefusedByItsVersions) {
  Pair c;
  FakeNode older(c, kDecode, "decode-1");
  older.hello.set_protocol_version(proto::kControlVersion - 1);
  const control::Welcome welcome = older.connect();
  EXPECT_FALSE(welcome.admitted());
  EXPECT_TRUE(welcome.lasting());
  EXPECT_EQ(welcome.reason(), "decode-1 speaks control protocol " +
                                  std::to_string(proto::kControlVersion - 1) + ", this router " +
                                  std::to_string(proto::kControlVersion) +
                                  ": run the same Tandem version");
}

TEST(Nodes, ASecondHolderOfANameWaitsUntilTheFirstIsQuiet) {
  Pair c;
  FakeNode twin(c, kDecode, "decode-0");
  EXPECT_FALSE(twin.connect().admitted());
  c.decode.crash(true);
  c.run(seconds(2));
  EXPECT_TRUE(twin.connect().admitted());
  EXPECT_EQ(c.dispatcher->snapshot()->nodes.size(), 2U);
}

TEST(Nodes, ADrainingNodeFinishesAndGetsNothingNew) {
  Cluster c(1);
  FakeNode& a = c.add(kDecode, "a");
  const uint64_t first = c.submit(40, 30);
  c.run(milliseconds(100));
  a.draining = true;
  a.heartbeat();
  c.run(milliseconds(5));
  EXPECT_FALSE(c.dispatcher->snapshot()->ready);
  FakeNode& b = c.add(kDecode, "b");
  const uint64_t second = c.submit(40, 10);
  c.settle(seconds(5));
  c.expect_right_answer(first);
  c.expect_right_answer(second);
  EXPECT_EQ(a.count(control::ToNode::kGenerate), 1);
  EXPECT_EQ(b.count(control::ToNode::kGenerate), 1);
}

TEST(Nodes, RepeatedPrefixesGoWhereTheyAre) {
  Cluster c(1);
  for (const char* id : {"p0", "p1", "p2"}) c.add(kPrefill, id);
  c.add(kDecode, "d0");
  TaskSpec spec;
  spec.prompt.assign(256, 3);
  spec.max_new_tokens = 1;
  for (int i = 0; i < 9; ++i) {
    c.submit(spec);
    c.settle(seconds(2));
  }
  int used = 0;
  for (const char* id : {"p0", "p1", "p2"})
    used += c.find(id)->count(control::ToNode::kPrefill) > 0 ? 1 : 0;
  EXPECT_EQ(used, 1);
}

// Answers that the decode node was given, with KV from a prefill node or without.
int tasks(Cluster& c, const char* id) {
  return c.find(id)->count(control::ToNode::kReserve) +
         c.find(id)->count(control::ToNode::kGenerate);
}

// Prompts that share nothing, `count` at once.
void submit_many(Cluster& c, int count, uint32_t first, size_t length = 100) {
  for (int i = 0; i < count; ++i) {
    TaskSpec spec;
    spec.prompt.assign(length, static_cast<TokenId>(first + static_cast<uint32_t>(i)));
    spec.max_new_tokens = 40;
    c.submit(spec);
  }
}

TEST(Nodes, OneThatHasAnsweredDoesNotDrawEverything) {
  Cluster c(1);
  c.add(kPrefill, "p0");
  c.add(kDecode, "d0");
  c.add(kDecode, "d1");
  submit_many(c, 1, 1);  // whoever takes it is known to be quicker than the guess for the other
  c.settle(seconds(5));
  submit_many(c, 8, 10);
  c.settle(seconds(5));
  EXPECT_GE(tasks(c, "d0"), 3);
  EXPECT_GE(tasks(c, "d1"), 3);
}

// Both say of themselves that they prefill 5000 tokens a second.
TEST(Nodes, OnesThatPrefillMoreSlowlyThanTheySayAreFoundOut) {
  for (const char* slow : {"p0", "d0"}) {
    SCOPED_TRACE(slow);
    Cluster c(1);
    FakeNode& p0 = c.add(kPrefill, "p0");
    FakeNode& d0 = c.add(kDecode, "d0");
    c.find(slow)->options.prefill_time = milliseconds(400);
    const auto round = [&](uint32_t i) {
      submit_many(c, 2, 10 + 10 * i, 1000);
      c.settle(seconds(10));
    };
    for (uint32_t i = 0; i < 6; ++i) round(i);  // what one has to wait for goes to the other
    const int there = p0.count(control::ToNode::kPrefill);
    const int here = d0.count(control::ToNode::kGenerate);
    EXPECT_GE(there, 4);
    EXPECT_GE(here, 4);
    for (uint32_t i = 6; i < 12; ++i) round(i);
    EXPECT_GE(slow == std::string("d0") ? p0.count(control::ToNode::kPrefill) - there
                                        : d0.count(control::ToNode::kGenerate) - here,
              11);
  }
}

// Short prompts are over before their tokens count: by them a decode node looks slow.
TEST(Nodes, AnIdleDecodeNodeIsTriedWhateverShortPromptsMadeItSay) {
  Cluster c(1);
  c.add(kPrefill, "p0");
  FakeNode& d0 = c.add(kDecode, "d0");
  d0.options.claimed_rate = 300;
  submit_many(c, 3, 10, 1000);
  c.settle(seconds(10));
  EXPECT_GE(d0.count(control::ToNode::kGenerate), 1);
}

TEST(Nodes, OneThatBecameQuickWhileItIdledIsBelievedAtOnce) {
  Cluster c(1);
  FakeNode& p0 = c.add(kPrefill, "p0");
  FakeNode& d0 = c.add(kDecode, "d0");
  p0.options.prefill_time = milliseconds(300);
  d0.options.prefill_time = milliseconds(2000);  // 500 tokens a second
  for (uint32_t i = 0; i < 12; ++i) {
    submit_many(c, 2, 10 + 10 * i, 1000);
    c.settle(seconds(10));
  }
  c.run(seconds(20));
  d0.options.prefill_time = milliseconds(20);
  const int before = d0.count(control::ToNode::kGenerate);
  for (uint32_t i = 0; i < 8; ++i) {
    submit_many(c, 2, 300 + 10 * i, 1000);
    c.settle(seconds(10));
  }
  EXPECT_GE(d0.count(control::ToNode::kGenerate), before + 10);
}

TEST(Nodes, ReportsOfSpeedMayBeAnything) {
  for (const double rate : {1e-300, -1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    Cluster c(1);
    c.add(kPrefill, "p0").options.claimed_rate = rate;
    c.add(kDecode, "d0").options.claimed_rate = rate;
    for (const char* id : {"p0", "d0"}) c.find(id)->heartbeat();
    submit_many(c, 4, 10, 1000);
    c.settle(seconds(10));
    for (const auto& [id, answer] : c.client->answers) c.expect_right_answer(id);
    c.expect_no_leaks();
  }
}

TEST(Nodes, TokensThatWereCachedDoNotMakeANodeQuick) {
  Cluster c(1);
  FakeNode& p0 = c.add(kPrefill, "p0");
  FakeNode& d0 = c.add(kDecode, "d0");
  p0.options.prefill_time = milliseconds(100);
  p0.options.cached_tokens = 900;
  for (uint32_t i = 0; i < 8; ++i) {
    submit_many(c, 1, 10 + 10 * i, 1000);
    c.settle(seconds(10));
  }
  EXPECT_GE(p0.count(control::ToNode::kPrefill), 4);
  const int here = d0.count(control::ToNode::kGenerate);
  // 1000 tokens, of which it has computed 100 in 100 ms or more: the decode node's 5000 a second
  // are more.
  submit_many(c, 1, 900, 1000);
  c.settle(seconds(10));
  EXPECT_EQ(d0.count(control::ToNode::kGenerate), here + 1);
}

TEST(Nodes, ASlowOneIsFoundOutAndTriedAgain) {
  Cluster c(1);
  c.add(kPrefill, "p0");
  c.add(kDecode, "quick").options.step_time = milliseconds(5);
  FakeNode& slow = c.add(kDecode, "slow");
  slow.options.step_time = milliseconds(100);
  for (uint32_t i = 0; i < 12; ++i) {  // both are learnt
    submit_many(c, 2, 10 + 10 * i);
    c.settle(seconds(10));
  }
  const int learnt = tasks(c, "slow");
  for (uint32_t i = 0; i < 10; ++i) {
    submit_many(c, 2, 200 + 10 * i);
    c.settle(seconds(10));
  }
  EXPECT_LE(tasks(c, "slow"), learnt + 4);
  slow.options.step_time = milliseconds(5);  // whatever slowed it has passed
  const int before = tasks(c, "slow");
  for (uint32_t i = 0; i < 60; ++i) {
    submit_many(c, 2, 400 + 10 * i);
    c.settle(seconds(10));
    c.run(seconds(5));
  }
  EXPECT_GE(tasks(c, "slow"), before + 10);
}

}  // namespace
}  // namespace tandem::router::sim
