// Failures of a cluster as the router sees them: scripted nodes, simulated time (failures.md).
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/sim/router_sim.h"

namespace tandem::router::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(Dispatch, HandsOverAndStreams) {
  Pair c;
  const uint64_t id = c.submit(100, 20);
  c.settle(seconds(5));
  c.expect_right_answer(id);
  c.expect_no_leaks();
  EXPECT_EQ(c.prefill.count(control::ToNode::kPrefill), 1);
  EXPECT_EQ(c.decode.count(control::ToNode::kReserve), 1);
  EXPECT_EQ(c.decode.count(control::ToNode::kGenerate), 0);
  EXPECT_EQ(c.dispatcher->counters().transfer_wire_bytes, 1000U);
}

TEST(Dispatch, DecodesAtOnceWhatThePrefillIsLateToReport) {
  // PrefillDone travels slower than decode's first tokens: no gap, no repeat, all the same.
  for (uint64_t seed = 1; seed < 40; ++seed) {
    Cluster c(seed);
    c.add(kPrefill, "p");
    FakeNode& d = c.add(kDecode, "d");
    d.options.step_time = milliseconds(2);
    d.options.repeat_tokens = 0.3;
    const uint64_t id = c.submit(64, 12);
    c.settle(seconds(5));
    c.expect_right_answer(id);
    c.expect_no_leaks();
  }
}

TEST(Dispatch, ShortPromptsStayOnTheDecodeNode) {
  Pair c;
  const uint64_t id = c.submit(20, 5);
  c.settle(seconds(5));
  c.expect_right_answer(id);
  EXPECT_EQ(c.decode.count(control::ToNode::kGenerate), 1);
  EXPECT_EQ(c.prefill.count(control::ToNode::kPrefill), 0);
  EXPECT_EQ(c.dispatcher->counters().local_short, 1U);
}

TEST(Dispatch, ScoringAndSingleTokensAreNotHandedOver) {
  Pair c;
  TaskSpec spec;
  spec.prompt.assign(100, 5);
  spec.max_new_tokens = 0;
  spec.prompt_logprobs = 1;
  const uint64_t score = c.submit(spec);
  const uint64_t one = c.submit(80, 1);
  c.settle(seconds(5));
  c.expect_right_answer(one);
  c.expect_right_answer(score);
  EXPECT_EQ(c.answer(score).scores.size(), 99U);
  EXPECT_EQ(c.decode.inbox.size(), 0U);
  c.expect_no_leaks();
}

TEST(Dispatch, AFullQueueTurnsAwayWithATimeToComeBack) {
  DispatchOptions options;
  options.queue_capacity = 4;
  NodeOptions slow;
  slow.prefill_time = milliseconds(500);
  Pair c(options, slow, slow);
  c.prefill.options.silent_prefill = false;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(c.submit(500, 4));
  int full = 0;
  for (uint64_t id : ids) {
    if (c.answer(id).error && c.answer(id).error->code == ErrorCode::kQueueFull) {
      ++full;
      EXPECT_GE(c.answer(id).retry_after, 1U);
      EXPECT_LE(c.answer(id).retry_after, 60U);
    }
  }
  EXPECT_GT(full, 5);
  EXPECT_EQ(c.dispatcher->counters().rejected_full, static_cast<uint64_t>(full));
  c.settle(minutes(1));
  c.expect_no_leaks();
}

TEST(Dispatch, ChoicesOfOneRequestAreTakenTogetherOrNotAtAll) {
  DispatchOptions options;
  options.queue_capacity = 4;
  Cluster c(1, options);  // no node: everything queues
  c.submit(50, 4);
  c.submit(50, 4);
  std::vector<Submission> choices(3);
  for (uint64_t i = 0; i < 3; ++i) {
    choices[i].id = RequestId{100 + i};
    choices[i].spec.prompt.assign(50, 1);
    choices[i].spec.max_new_tokens = 4;
  }
  c.dispatcher->submit(std::move(choices), c.client);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(c.answer(100 + i).error);
  EXPECT_EQ(c.dispatcher->open_requests(), 2U);
}

TEST(Dispatch, PastTheDeadlineTheDecodeNodePrefills) {
  NodeOptions silent;
  silent.prefill_time = seconds(20);
  Pair c({}, silent);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(c.submit(600, 4));
  c.run(seconds(5));
  EXPECT_GE(c.dispatcher->counters().failovers_local + c.dispatcher->counters().local_predicted,
            1U);
  c.settle(minutes(2));
  for (uint64_t id : ids) c.expect_right_answer(id);
  c.expect_no_leaks();
}

TEST(Dispatch, NobodyToTakeItIsA503AfterTheDeadline) {
  Cluster c(1);
  const uint64_t id = c.submit(50, 4);
  c.run(milliseconds(2900));
  EXPECT_FALSE(c.answer(id).ended());
  c.run(milliseconds(200));
  ASSERT_TRUE(c.answer(id).error);
  EXPECT_EQ(error_traits(c.answer(id).error->code).http_status, 503);
  EXPECT_GE(c.answer(id).retry_after, 1U);
}

TEST(Dispatch, ANodeThatComesWithinTheDeadlineServesWhatWaited) {  // failures.md 26
  Cluster c(1);
  const uint64_t id = c.submit(50, 4);
  c.run(seconds(2));
  EXPECT_FALSE(c.dispatcher->snapshot()->ready);
  c.add(kDecode, "decode-0");
  EXPECT_TRUE(c.dispatcher->snapshot()->ready);
  c.settle(seconds(5));
  c.expect_right_answer(id);
}

TEST(Dispatch, WhatNoNodeCouldEverHoldFailsAtOnce) {
  NodeOptions tiny;
  tiny.kv_blocks = 4;
  Pair c({}, {}, tiny);
  const uint64_t id = c.submit(100, 4);
  ASSERT_TRUE(c.answer(id).error);
  EXPECT_EQ(c.answer(id).error->code, ErrorCode::kResourceExhausted);
  EXPECT_NE(c.answer(id).error->detail.find("KV blocks"), std::string::npos);
}

// ---- failures.md 1: aborted remote load never freed when the prefill side stays silent
TEST(Failures, SilentPrefillEndsWithItsLeaseAndBothSidesAreFreed) {
  NodeOptions silent;
  silent.silent_prefill = true;
  DispatchOptions options;
  options.lease = seconds(10);
  Pair c(options, silent);
  const uint64_t id = c.submit(100, 10);
  c.run(seconds(5));
  EXPECT_EQ(c.decode.reservations.size(), 1U);
  c.prefill.options.silent_prefill = false;
  c.settle(minutes(1));
  c.expect_right_answer(id);
  c.expect_no_leaks();
  EXPECT_EQ(c.dispatcher->counters().leases_expired, 1U);
}

// ---- failures.md 2: decode rejects before admission, prefill strands its blocks
TEST(Failures, ARefusedReservationNeverReachesThePrefillNode) {
  NodeOptions full;
  full.refuse_reservation = 1;
  Pair c({}, {}, full);
  const uint64_t id = c.submit(100, 10);
  c.run(seconds(1));
  EXPECT_EQ(c.prefill.count(control::ToNode::kPrefill), 0);
  EXPECT_GT(c.decode.count(control::ToNode::kReserve), 3);
  EXPECT_LT(c.decode.count(control::ToNode::kReserve), 30);  // pauses between questions
  EXPECT_EQ(c.dispatcher->counters().breaker_opened, 0U);    // full is not broken
  c.decode.options.refuse_reservation = 0;
  c.settle(seconds(10));
  c.expect_right_answer(id);
  c.expect_no_leaks();
}

// ---- failures.md 3, 4, 5: cancel knows the phase
TEST(Failures, CancelFreesEverythingInEveryPhase) {
  for (int ms = 0; ms < 140; ++ms) {
    for (bool local : {false, true}) {
      Pair c;
      const uint64_t id = c.submit(local ? 20 : 100, 30);
      c.run(milliseconds(ms));
      c.dispatcher->cancel(RequestId{id});
      c.dispatcher->cancel(RequestId{id});
      c.run(milliseconds(400));
      c.expect_no_leaks();
      EXPECT_FALSE(c.answer(id).ended()) << ms;
      const uint64_t next = c.submit(100, 5);  // the next one is not held up
      c.settle(seconds(2));
      c.expect_right_answer(next);
    }
  }
}

// ---- failures.md 7: clean-up only ran when new work was scheduled
TEST(Failures, SweepsRunWithoutNewWork) {
  NodeOptions silent;
  silent.silent_reserve = true;
  Pair c({}, {}, silent);
  const uint64_t id = c.submit(100, 10);
  c.run(minutes(2));  // nothing new comes
  EXPECT_TRUE(c.answer(id).ended());
  EXPECT_TRUE(c.answer(id).error);
  EXPECT_GT(c.dispatcher->counters().reserve_timeouts, 0U);
  EXPECT_EQ(c.dispatcher->open_requests(), 0U);
}

// ---- failures.md 9: failed post of a push; decode counts down for ever
TEST(Failures, KvThatNeverArrivesIsSentAgainAfterItsLease) {
  NodeOptions lossy;
  lossy.lose_transfer = 1;
  DispatchOptions options;
  options.lease = seconds(8);
  Pair c(options, lossy);
  const uint64_t id = c.submit(100, 10);
  c.run(seconds(4));
  EXPECT_EQ(c.answer(id).tokens.size(), 1U);  // the first token went out
  c.prefill.options.lose_transfer = 0;
  c.settle(minutes(1));
  c.expect_right_answer(id);
  c.expect_no_leaks();
  EXPECT_EQ(c.dispatcher->counters().resumes, 1U);
}

// Whichever comes first: a prefill node hears of every decode node, and of nobody else.
TEST(Introductions, PrefillNodesHearOfDecodeNodesBeforeAnyRequest) {
  Cluster c(1);
  const auto addresses = [](const FakeNode& node) {
    std::vector<std::string> out;
    for (const control::ToNode& m : node.inbox)
      if (m.has_peer_here())
        out.push_back(m.peer_here().node_id() + " " + m.peer_here().transport_address());
    std::sort(out.begin(), out.end());
    return out;
  };
  FakeNode& first = c.add(control::ROLE_DECODE, "decode-0");
  FakeNode& prefill = c.add(control::ROLE_PREFILL, "prefill-0");
  FakeNode& other = c.add(control::ROLE_PREFILL, "prefill-1");
  FakeNode& second = c.add(control::ROLE_DECODE, "decode-1");
  c.run(milliseconds(5));
  const std::vector<std::string> both{"decode-0 " + first.hello.transport_address(),
                                      "decode-1 " + second.hello.transport_address()};
  EXPECT_NE(first.hello.transport_address(), second.hello.transport_address());
  EXPECT_EQ(addresses(prefill), both);
  EXPECT_EQ(addresses(other), both);
  EXPECT_TRUE(addresses(first).empty());
  EXPECT_TRUE(addresses(second).empty());
  EXPECT_EQ(prefill.count(control::ToNode::kPeerHere), 2) << "once each";
  prefill.crash(false);
  EXPECT_TRUE(prefill.connect().admitted());  // a new process hears of all again
  c.run(milliseconds(5));
  EXPECT_EQ(prefill.count(control::ToNode::kPeerHere), 4);
}

// Addresses go to every prefill node.
TEST(Introductions, AnAddressOfAnyLengthIsNotTaken) {
  Cluster c(1);
  FakeNode& node = c.add(control::ROLE_DECODE, "decode-0");
  node.crash(false);
  node.hello.set_transport_address(std::string(60 << 10, 'x'));
  const control::Welcome welcome = node.connect();
  EXPECT_FALSE(welcome.admitted());
  EXPECT_TRUE(welcome.lasting());
  EXPECT_NE(welcome.reason().find("61440 bytes"), std::string::npos) << welcome.reason();
}

// ---- failures.md 10: prefill restart crashes decode
TEST(Failures, ARestartedPrefillIsFencedByItsGeneration) {
  Pair c;
  const uint64_t id = c.submit(100, 10);
  c.run(milliseconds(20));  // the prefill is running
  const uint64_t old_generation = c.prefill.hello.generation();
  const NodeHandle old_handle = c.prefill.handle;
  c.prefill.crash(false);
  EXPECT_TRUE(c.prefill.connect().admitted());
  c.run(milliseconds(5));
  ASSERT_EQ(c.decode.count(control::ToNode::kPeerGone), 1);
  for (const control::ToNode& m : c.decode.inbox) {
    if (m.has_peer_gone()) {
      EXPECT_EQ(m.peer_gone().generation(), old_generation);
    }
  }
  control::ToRouter late;  // from the dead incarnation
  late.mutable_prefill_done()->set_request_id(id);
  late.mutable_prefill_done()->mutable_first()->set_id(999);
  c.dispatcher->on_message(old_handle, late);
  EXPECT_EQ(c.dispatcher->counters().messages_fenced, 1U);
  c.settle(seconds(5));
  c.expect_right_answer(id);
  c.expect_no_leaks();
}

// ---- failures.md 11: prefill crash fails the decode's health
TEST(Failures, APrefillCrashTouchesOnlyItsOwnRequests) {
  Pair c;
  const uint64_t decoding = c.submit(100, 100);
  c.run(milliseconds(200));
  ASSERT_GT(c.answer(decoding).tokens.size(), 3U);
  const uint64_t prefilling = c.submit(100, 10);
  c.run(milliseconds(10));
  c.prefill.crash(false);
  EXPECT_TRUE(c.dispatcher->snapshot()->ready);
  c.settle(seconds(10));
  c.expect_right_answer(decoding);
  c.expect_right_answer(prefilling);  // by local prefill
  EXPECT_EQ(c.decode.count(control::ToNode::kCancel), 1);
  const auto snapshot = c.dispatcher->snapshot();
  for (const NodeStatus& n : snapshot->nodes) EXPECT_EQ(n.breaker, BreakerState::kClosed);
  c.expect_no_leaks();
}

// ---- failures.md 12: breaker open for prefill, decode leg still dispatched
TEST(Failures, AnOpenPrefillBreakerMeansNoReservationEither) {
  NodeOptions failing;
  failing.fail_prefill = 1;
  DispatchOptions options;
  options.max_retries = 5;
  options.local_prefill_below = 0;  // no prompt avoids the prefill node as long as it may be used
  Pair c(options, failing);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(c.submit(100, 5));
  c.settle(minutes(1));
  EXPECT_GE(c.dispatcher->counters().breaker_opened, 1U);
  for (uint64_t id : ids) c.expect_right_answer(id);  // on the decode node
  const int reserves = c.decode.count(control::ToNode::kReserve);
  const int prefills = c.prefill.count(control::ToNode::kPrefill);
  EXPECT_EQ(reserves, prefills);
  c.expect_no_leaks();
  c.prefill.options.fail_prefill = 0;  // and it is not dead for ever
  c.run(minutes(1));
  const uint64_t later = c.submit(100, 5);
  c.settle(seconds(5));
  c.expect_right_answer(later);
  EXPECT_GT(c.prefill.count(control::ToNode::kPrefill), prefills);
}

// ---- failures.md 13: one stuck backend hangs the router
TEST(Failures, ADecodeNodeThatStopsTalkingIsLeft) {
  DispatchOptions options;
  options.stall_timeout = seconds(10);
  Cluster c(1, options);
  c.add(kPrefill, "p");
  NodeOptions mute;
  mute.silent_decode = true;
  c.add(kDecode, "a", mute);
  const uint64_t id = c.submit(100, 10);
  c.run(seconds(1));
  EXPECT_EQ(c.answer(id).tokens.size(), 1U);
  c.add(kDecode, "b");
  c.settle(minutes(2));
  c.expect_right_answer(id);
  EXPECT_GE(c.dispatcher->counters().stalls, 1U);
  c.expect_no_leaks();
}

TEST(Failures, AWedgedSchedulerIsToldFromASlowOne) {
  Cluster c(1);
  FakeNode& a = c.add(kDecode, "a");
  const uint64_t id = c.submit(100, 2000);
  c.run(seconds(3));
  a.options.wedged = true;
  a.options.silent_decode = true;
  a.options.step_time = minutes(60);
  c.run(seconds(1));
  c.add(kDecode, "b");
  c.settle(minutes(2));
  c.expect_right_answer(id);
  EXPECT_EQ(c.dispatcher->counters().nodes_gone, 1U);
}

TEST(Failures, AHalfOpenConnectionIsGivenUpByItsHeartbeats) {
  Cluster c(1);
  c.add(kPrefill, "p");
  FakeNode& a = c.add(kDecode, "a");
  const uint64_t id = c.submit(100, 400);
  c.run(seconds(1));
  const size_t before = c.answer(id).tokens.size();
  ASSERT_GT(before, 5U);
  a.crash(true);
  c.run(milliseconds(100));
  c.add(kDecode, "b");
  c.run(seconds(3));
  EXPECT_EQ(c.answer(id).tokens.size(), before);  // not yet sure
  c.settle(minutes(1));
  c.expect_right_answer(id);  // a pause, no gap, no repeat
  EXPECT_EQ(c.dispatcher->counters().resumes, 1U);
}

TEST(Failures, DecodeDeathIsAPauseForTheClient) {
  for (int ms = 0; ms < 300; ms += 7) {
    Cluster c(static_cast<uint64_t>(ms) + 1);
    c.add(kPrefill, "p");
    FakeNode& a = c.add(kDecode, "a");
    const uint64_t id = c.submit(100, 20);
    c.run(milliseconds(ms));
    a.crash(false);
    c.add(kDecode, "b");
    c.settle(minutes(1));
    c.expect_right_answer(id);
    c.expect_no_leaks();
  }
}

TEST(Failures, RetriesAreBoundedAndTheErrorCarriesTheNodesWords) {  // failures.md 28
  NodeOptions failing;
  failing.fail_prefill = 1;
  Cluster c(1);
  c.add(kPrefill, "p", failing);
  const uint64_t id = c.submit(100, 1);  // prefill only
  c.settle(minutes(1));
  ASSERT_TRUE(c.answer(id).error);
  EXPECT_NE(c.answer(id).error->detail.find("out of luck"), std::string::npos)
      << c.answer(id).error->detail;
  EXPECT_NE(c.answer(id).error->detail.find("node p"), std::string::npos);
  EXPECT_EQ(c.dispatcher->counters().retries, 2U);
}

TEST(Failures, ClientErrorsOfOneRequestDoNotTouchOthers) {  // failures.md 22
  Pair c;
  const uint64_t good = c.submit(100, 50);
  c.run(milliseconds(150));
  for (int i = 0; i < 20; ++i) {
    const uint64_t bad = c.submit(20, 50);
    c.run(milliseconds(2));
    control::ToRouter message;
    message.mutable_failed()->set_request_id(bad);
    message.mutable_failed()->set_code("invalid_argument");
    message.mutable_failed()->set_detail("tokens[3] is odd");
    c.decode.send(message, {});
    c.run(milliseconds(5));
    ASSERT_TRUE(c.answer(bad).error);
    EXPECT_EQ(error_traits(c.answer(bad).error->code).http_status, 400);
    c.decode.running.erase(bad);
  }
  c.settle(seconds(10));
  c.expect_right_answer(good);
  EXPECT_EQ(c.dispatcher->counters().breaker_opened, 0U);
}

TEST(Shutdown, DrainingRefusesNewRequestsAndFinishesOldOnes) {
  Pair c;
  const uint64_t first = c.submit(100, 30);
  c.run(milliseconds(100));
  c.dispatcher->drain();
  const uint64_t second = c.submit(100, 30);
  ASSERT_TRUE(c.answer(second).error);
  EXPECT_EQ(c.answer(second).error->code, ErrorCode::kUnavailable);
  EXPECT_FALSE(c.dispatcher->snapshot()->ready);
  c.settle(seconds(5));
  c.expect_right_answer(first);
}

TEST(Shutdown, WhatIsCutEndsOnceAndLeavesNothingBehind) {
  Pair c;
  std::vector<uint64_t> open;
  for (int i = 0; i < 40; ++i) open.push_back(c.submit(100, 30));
  c.run(milliseconds(100));  // some wait, some are on their way, some generate
  c.dispatcher->drain();
  c.dispatcher->cut();
  EXPECT_EQ(c.dispatcher->open_requests(), 0U);
  for (uint64_t id : open) {
    if (!c.answer(id).error) continue;
    EXPECT_EQ(c.answer(id).error->code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(c.answer(open.back()).error);
  c.settle(seconds(5));
  c.expect_no_leaks();
}

// Everything at once: nodes crash (loudly and silently), come back, refuse, fail, lose and repeat;
// clients leave. Whatever happens, an answer that ends well is the right one, every request ends
// once, and nothing is left anywhere.
TEST(Chaos, NoGapNoRepeatNoLeak) {
  uint64_t first = 1;
  uint64_t last = 25;
  if (const char* seed = std::getenv("TANDEM_SIM_SEED"))
    first = last = std::strtoull(seed, nullptr, 10);
  int good = 0;
  int bad = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TANDEM_SIM_SEED=" + std::to_string(seed));
    DispatchOptions options;
    options.lease = seconds(8);
    options.stall_timeout = seconds(8);
    options.max_retries = 20;
    Cluster c(seed, options);
    NodeOptions flaky;
    flaky.refuse_reservation = 0.1;
    flaky.fail_prefill = 0.05;
    flaky.lose_transfer = 0.05;
    flaky.repeat_tokens = 0.1;
    std::vector<FakeNode*> nodes;
    for (const char* id : {"p0", "p1"}) nodes.push_back(&c.add(kPrefill, id, flaky));
    for (const char* id : {"d0", "d1", "d2"}) nodes.push_back(&c.add(kDecode, id, flaky));
    std::vector<uint64_t> ids;
    std::set<uint64_t> cancelled;
    for (int round = 0; round < 120; ++round) {
      c.run(milliseconds(c.random() % 150));
      for (uint64_t i = c.random() % 3; i > 0; --i) {
        ids.push_back(c.submit(1 + static_cast<uint32_t>(c.random() % 400),
                               static_cast<uint32_t>(c.random() % 60)));
      }
      if (!ids.empty() && c.chance(0.1)) {
        const uint64_t id = ids[c.random() % ids.size()];
        if (!c.answer(id).ended()) {
          c.dispatcher->cancel(RequestId{id});
          cancelled.insert(id);
        }
      }
      FakeNode* victim = nodes[c.random() % nodes.size()];
      if (victim->up && c.chance(0.06)) victim->crash(c.chance(0.3));
      if (!victim->up && c.chance(0.5)) (void)victim->connect();
    }
    c.settle(minutes(5));
    for (FakeNode* node : nodes) {  // a silent crash may still be unnoticed
      if (!node->up) node->running.clear();
    }
    c.run(seconds(10));
    c.expect_no_leaks();
    for (uint64_t id : ids) {
      const Client::Answer& a = c.answer(id);
      if (cancelled.contains(id)) continue;
      EXPECT_EQ(a.ends, 1);
      const std::vector<TokenId> want = c.expected(id);
      ASSERT_LE(a.tokens.size(), want.size());
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), want.begin())) << "request " << id;
      if (a.finish) {
        EXPECT_EQ(a.tokens.size(), want.size());
      }
      ++(a.finish ? good : bad);
    }
  }
  std::printf("%d answers right, %d ended in an error\n", good, bad);
  EXPECT_GT(good, 20 * bad);
}

}  // namespace
}  // namespace tandem::router::sim
