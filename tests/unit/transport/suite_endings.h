#pragma once

// How transfers end: cancelled, closed, too late, refused, or with their peer.

#include "tests/unit/transport/transport_fixture.h"

namespace tandem::transport::testing {

// failures.md 4: a cancel is understood in whatever phase it comes.
TYPED_TEST_P(TransportSuite, TheSenderMayCancelInEveryPhase) {
  uint64_t number = 1;
  for (int phase = 0; phase < 3; ++phase) {  // opened, some pages posted, all pages posted
    SCOPED_TRACE(phase);
    const TransferId id{number++};
    Pages from(kLayout, 2, 0, 9);
    Pages into(kLayout, 2, 0);
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
    ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
    for (uint32_t layer = 0; layer < (phase == 0 ? 0u : phase == 1 ? 1u : 3u); ++layer) {
      ASSERT_TRUE(this->post_layer(id, from, layer, 0, 2));
    }
    this->sender_.transport->cancel_send(id, "client left");
    ASSERT_TRUE(this->both_ended(id));
    EXPECT_EQ(this->sender_.events.send_failed(id)->code, ErrorCode::kCancelled);
    ASSERT_TRUE(this->receiver_.events.receive_failed(id));
    EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kCancelled);
    EXPECT_NE(this->receiver_.events.receive_failed(id)->detail.find("client left"),
              std::string::npos);
    EXPECT_EQ(this->sender_.transport->post_commit(id, "").error().code, ErrorCode::kNotFound);
  }
  this->sender_.transport->cancel_send(TransferId{999}, "never opened");
  this->expect_works(TransferId{50});
}

// failures.md 2, 28: the receiver's refusal reaches the sender, in the receiver's words.
TYPED_TEST_P(TransportSuite, TheReceiverMayCloseInEveryPhaseAndTheSenderLearnsIt) {
  uint64_t number = 1;
  for (int phase = 0; phase < 3; ++phase) {  // before anything, after pages, before the commit
    SCOPED_TRACE(phase);
    const TransferId id{number++};
    Pages from(kLayout, 2, 0, 9);
    Pages into(kLayout, 2, 0);
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
    ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
    const uint32_t before = phase == 0 ? 0u : phase == 1 ? 1u : 3u;
    for (uint32_t layer = 0; layer < before; ++layer) {
      ASSERT_TRUE(this->post_layer(id, from, layer, 0, 2));
    }
    this->backend_.settle();
    this->receiver_.transport->close_receive(id);
    this->receiver_.transport->close_receive(id);
    for (uint32_t layer = before; layer < 3; ++layer) {
      if (!this->post_layer(id, from, layer, 0, 2)) break;  // refused already
    }
    (void)this->sender_.transport->post_commit(id, "");
    ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(id) > 0; }));
    ASSERT_TRUE(this->sender_.events.send_failed(id));
    EXPECT_NE(this->sender_.events.send_failed(id)->detail.find("receiver closed it"),
              std::string::npos);
    EXPECT_EQ(this->receiver_.events.events(id), 0);  // close is its own end
  }
  this->expect_works(TransferId{50});
}

// failures.md 15: no late frame may touch blocks that were given to someone else.
TYPED_TEST_P(TransportSuite, AfterCloseReceiveNoLateFrameWritesAByte) {
  const TransferId id{1};
  Pages from(kLayout, 4, 0, 9);
  Pages into(kLayout, 4, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  this->receiver_.transport->close_receive(id);
  for (uint32_t layer = 0; layer < 3; ++layer) (void)this->post_layer(id, from, layer, 0, 4);
  (void)this->sender_.transport->post_commit(id, "");
  ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(id) > 0; }));
  this->backend_.settle();
  EXPECT_TRUE(into.untouched());
  EXPECT_GE(this->counted().frames_rejected_unknown, 1u);
  this->expect_works(TransferId{50});
}

// failures.md 1, 7: a silent sender's transfer ends by the clock, without new work.
TYPED_TEST_P(TransportSuite, DeadlinesEndBothSidesOfASilentTransfer) {
  this->expect_works(TransferId{50});  // connected: nothing of what follows waits for that
  const uint64_t before = this->counted().frames_received;
  const TransferId id{1};
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into, milliseconds(600))));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from, milliseconds(2500))));
  ASSERT_TRUE(this->post_layer(id, from, 0, 0, 2));
  // A frame that came after the deadline would be refused, which ends the sender's half earlier.
  ASSERT_TRUE(this->backend_.until([&] { return this->counted().frames_received > before; }));
  this->backend_.pass(milliseconds(600));
  ASSERT_TRUE(this->backend_.until([&] { return this->receiver_.events.events(id) > 0; }));
  EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kDeadlineExceeded);
  this->backend_.pass(milliseconds(2000));
  ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(id) > 0; }));
  EXPECT_EQ(this->sender_.events.send_failed(id)->code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(this->counted().transfers_expired, 1u);
}

// failures.md 9: what could not be posted fails on both sides at once instead of by time-out.
TYPED_TEST_P(TransportSuite, AFailedPostReachesTheReceiverAsAnErrorFrame) {
  const TransferId id{1};
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  ASSERT_TRUE(this->post_layer(id, from, 0, 0, 2));
  const std::vector<std::byte> wrong(10);
  const std::span<const std::byte> one[] = {wrong};
  EXPECT_EQ(this->sender_.transport->post_pages(id, 1, 0, one).error().code,
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(this->both_ended(id));
  EXPECT_NE(this->sender_.events.send_failed(id)->detail.find("10 bytes"), std::string::npos);
  EXPECT_NE(this->receiver_.events.receive_failed(id)->detail.find("10 bytes"), std::string::npos);
}

TYPED_TEST_P(TransportSuite, PostsThatContradictTheSpecAreRefused) {
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  const auto post_after_open = [&](uint64_t number, auto&& post) {
    const TransferId id{number};
    EXPECT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
    const Status status = post(id);
    return status ? std::string("accepted") : status.error().detail;
  };
  const auto& transport = this->sender_.transport;
  EXPECT_NE(post_after_open(1, [&](TransferId id) { return this->post_layer(id, from, 3, 0, 0); })
                .find("accepted"),
            std::string::npos);  // nothing to post is nothing
  EXPECT_NE(post_after_open(2,
                            [&](TransferId id) {
                              const std::span<const std::byte> page[] = {from.page(0, 0)};
                              return transport->post_pages(id, 3, 0, page);
                            })
                .find("outside"),
            std::string::npos);
  EXPECT_NE(post_after_open(3,
                            [&](TransferId id) {
                              const std::span<const std::byte> page[] = {from.page(0, 0)};
                              return transport->post_pages(id, 0, 2, page);
                            })
                .find("outside"),
            std::string::npos);
  // Its first page is sent, and must not be answered with "nobody waits for it" before the second.
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(TransferId{4}, into)));
  EXPECT_NE(post_after_open(4,
                            [&](TransferId id) {
                              EXPECT_TRUE(this->post_layer(id, from, 0, 0, 1));
                              return this->post_layer(id, from, 0, 0, 2);
                            })
                .find("twice"),
            std::string::npos);
  EXPECT_NE(post_after_open(5, [&](TransferId id) { return transport->post_commit(id, ""); })
                .find("6 pages were never posted"),
            std::string::npos);
  EXPECT_NE(post_after_open(
                6, [&](TransferId id) { return transport->post_tail(id, 0, from.page(0, 0)); })
                .find("no tail"),
            std::string::npos);
  EXPECT_EQ(transport->post_commit(TransferId{77}, "").error().code, ErrorCode::kNotFound);
  for (uint64_t number = 2; number <= 6; ++number) {  // until then the pages must stay
    EXPECT_TRUE(this->backend_.until(
        [&] { return this->sender_.events.send_failed(TransferId{number}).has_value(); }));
  }
  ASSERT_TRUE(this->both_ended(TransferId{4}));
}

TYPED_TEST_P(TransportSuite, OpensAreCheckedAndBounded) {
  Node small;
  this->start(small, "small", Generation{303}, {.max_sends = 2, .max_receives = 2});
  Pages from(kLayout, 1, 0, 9);
  Pages into(kLayout, 1, 0);
  auto spec = this->spec(TransferId{1}, from);
  EXPECT_TRUE(small.transport->open_send(spec));
  EXPECT_EQ(small.transport->open_send(spec).error().code, ErrorCode::kInvalidArgument);
  spec.id = TransferId{2};
  EXPECT_TRUE(small.transport->open_send(spec));
  spec.id = TransferId{3};
  EXPECT_EQ(small.transport->open_send(spec).error().code, ErrorCode::kQueueFull);
  auto plan = this->plan(TransferId{1}, into);
  EXPECT_TRUE(small.transport->open_receive(plan));
  EXPECT_EQ(small.transport->open_receive(plan).error().code, ErrorCode::kInvalidArgument);
  plan.id = TransferId{2};
  EXPECT_TRUE(small.transport->open_receive(plan));
  plan.id = TransferId{3};
  EXPECT_EQ(small.transport->open_receive(plan).error().code, ErrorCode::kQueueFull);
  small.transport->close_receive(TransferId{1});
  EXPECT_TRUE(small.transport->open_receive(plan));
  plan.layout.head_dim = 7;
  EXPECT_FALSE(small.transport->open_receive(plan));
  for (const std::string address : {"", "nonsense", "inproc", "ucx:", "\x01\x02\x03"}) {
    auto bad = this->spec(TransferId{9}, from);
    bad.address = address;
    EXPECT_EQ(this->sender_.transport->open_send(bad).error().code, ErrorCode::kInvalidArgument)
        << address;
  }
}

// failures.md 10, 11: a peer that is gone fails its own transfers soon, and only those.
TYPED_TEST_P(TransportSuite, ADeadReceiverFailsItsTransfersWithinASecond) {
  if (!TypeParam::kSeesEndedTransports) {
    GTEST_SKIP()
        << "only the death of a whole process shows here: transport_process_test kills one";
  }
  Node other;
  this->start(other, "other", Generation{404});
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  const TransferId lost{1};
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(lost, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(lost, from)));
  ASSERT_TRUE(this->post_layer(lost, from, 0, 0, 2));
  this->backend_.settle();
  const TransferId alive{2};
  auto plan = this->plan(alive, into);
  ASSERT_TRUE(other.transport->open_receive(plan));
  auto spec = this->spec(alive, from);
  spec.receiver = other.generation;
  spec.address = other.transport->address();
  ASSERT_TRUE(this->sender_.transport->open_send(spec));
  this->receiver_.transport.reset();
  this->backend_.pass(milliseconds(300));
  ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(lost) > 0; }));
  EXPECT_EQ(this->sender_.events.send_failed(lost)->code, ErrorCode::kTransport);
  EXPECT_EQ(this->sender_.events.events(alive), 0);
  this->post_all(alive, from);
  ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(alive) > 0; }));
  EXPECT_TRUE(this->sender_.events.sent(alive));
}

TYPED_TEST_P(TransportSuite, AReceiverThatCameBackIsReachedAtItsNewAddress) {
  this->expect_works(TransferId{1});
  this->receiver_.transport.reset();
  this->start(this->receiver_, "decode", Generation{203});
  this->expect_works(TransferId{2});
}

// Twice, and whoever is met before a transfer or not is served alike.
TYPED_TEST_P(TransportSuite, APeerMayBeMetBeforeTheFirstTransfer) {
  for (int time = 0; time < 2; ++time) {
    this->sender_.transport->meet("decode-0", this->receiver_.transport->address());
  }
  this->expect_works(TransferId{1});
  this->sender_.transport->meet("decode-1", "nobody");
  ASSERT_TRUE(
      this->backend_.until([&] { return this->sender_.events.not_met("decode-1").has_value(); }));
  this->expect_works(TransferId{2});
  EXPECT_FALSE(this->sender_.events.not_met("decode-0"));
}

TYPED_TEST_P(TransportSuite, NamesWhatIsInUse) {
  EXPECT_FALSE(this->sender_.transport->name().empty());
  EXPECT_TRUE(this->sender_.transport->detail().starts_with(this->sender_.transport->name()));
}

}  // namespace tandem::transport::testing
