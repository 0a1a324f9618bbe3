#pragma once

// The behaviour that every transport shares: one typed suite, instantiated per backend.

#include "tests/unit/transport/suite.h"

namespace tandem::transport::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr kv::KvLayout kLayout{3, 2, 64, kv::KvFormat::kInt8};

template <typename Backend>
class TransportSuite : public ::testing::Test {
 protected:
  TransportSuite() {
    start(sender_, "prefill", Generation{101});
    start(receiver_, "decode", Generation{202});
  }
  void start(Node& node, const std::string& name, Generation generation,
             const TransportLimits& limits = {}) {
    node.generation = generation;
    node.transport = backend_.create(name, generation, node.events, limits);
    ASSERT_NE(node.transport, nullptr);
  }

  ReceivePlan plan(TransferId id, Pages& into, Duration deadline = seconds(20)) {
    ReceivePlan p;
    p.id = id;
    p.sender = sender_.generation;
    p.layout = into.layout();
    p.pages = into.count();
    p.destination = [&into](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    p.tail_rows = into.tail_rows();
    if (p.tail_rows > 0) {
      p.tail_destination = [&into](uint32_t layer) { return into.tail(layer); };
    }
    p.deadline = deadline;
    return p;
  }
  SendSpec spec(TransferId id, const Pages& from, Duration deadline = seconds(20)) {
    return {.id = id,
            .receiver = receiver_.generation,
            .address = receiver_.transport->address(),
            .layout = from.layout(),
            .pages = from.count(),
            .tail_rows = from.tail_rows(),
            .deadline = deadline};
  }
  Status post_layer(TransferId id, Pages& from, uint32_t layer, uint32_t first, uint32_t count) {
    std::vector<std::span<const std::byte>> pages;
    for (uint32_t i = first; i < first + count; ++i) pages.push_back(from.page(layer, i));
    return sender_.transport->post_pages(id, layer, first, pages);
  }
  void post_all(TransferId id, Pages& from, const std::string& commit = "commit") {
    for (uint32_t layer = 0; layer < from.layout().layers; ++layer) {
      ASSERT_TRUE(post_layer(id, from, layer, 0, from.count()));
      if (from.tail_rows() > 0) {
        ASSERT_TRUE(sender_.transport->post_tail(id, layer, from.tail(layer)));
      }
    }
    ASSERT_TRUE(sender_.transport->post_commit(id, commit));
  }
  bool both_ended(TransferId id) {
    return backend_.until(
        [&] { return receiver_.events.events(id) > 0 && sender_.events.events(id) > 0; });
  }
  // A whole transfer that must succeed: after each fault the wire still works.
  void expect_works(TransferId id) {
    Pages from(kLayout, 2, 0, id.value);
    Pages into(kLayout, 2, 0);
    ASSERT_TRUE(receiver_.transport->open_receive(plan(id, into)));
    ASSERT_TRUE(sender_.transport->open_send(spec(id, from)));
    post_all(id, from);
    ASSERT_TRUE(both_ended(id));
    EXPECT_TRUE(receiver_.events.received(id)) << receiver_.events.receive_failed(id)->detail;
    EXPECT_TRUE(sender_.events.sent(id)) << sender_.events.send_failed(id)->detail;
    EXPECT_TRUE(from == into);
  }
  // A data frame as the real sender would build it.
  Frame data_frame(TransferId id, Pages& from, uint32_t layer, uint32_t first, uint32_t count) {
    std::vector<std::span<const std::byte>> pages;
    for (uint32_t i = first; i < first + count; ++i) pages.push_back(from.host_page(layer, i));
    return make_data_frame(origin(id, from.layout()), layer, first, pages);
  }
  FrameOrigin origin(TransferId id, const kv::KvLayout& layout = kLayout) {
    return {id, sender_.generation, receiver_.generation, geometry_hash(layout),
            static_cast<uint8_t>(layout.format)};
  }
  TransportCounters counted() { return receiver_.transport->counters(); }

  Backend backend_;
  Node sender_;
  Node receiver_;
};
TYPED_TEST_SUITE_P(TransportSuite);

TYPED_TEST_P(TransportSuite, EveryFormatArrivesByteForByte) {
  uint64_t number = 1;
  for (const kv::KvFormat format :
       {kv::KvFormat::kF32, kv::KvFormat::kBf16, kv::KvFormat::kInt8, kv::KvFormat::kK8V4,
        kv::KvFormat::kInt4, kv::KvFormat::kFp8E4M3}) {
    SCOPED_TRACE(to_string(format));
    const kv::KvLayout layout{3, 2, 64, format};
    const TransferId id{number++};
    const uint32_t tail_rows = layout.needs_tail() ? 11 : 0;
    Pages from(layout, 5, tail_rows, id.value);
    Pages into(layout, 5, tail_rows);
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
    ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
    this->post_all(id, from, "first token 17");
    ASSERT_TRUE(this->both_ended(id));
    ASSERT_TRUE(this->receiver_.events.received(id));
    EXPECT_EQ(this->receiver_.events.received(id)->commit, "first token 17");
    EXPECT_TRUE(from == into);
    ASSERT_TRUE(this->sender_.events.sent(id));
    EXPECT_EQ(this->receiver_.events.events(id), 1);
    EXPECT_EQ(this->sender_.events.events(id), 1);
  }
}

TYPED_TEST_P(TransportSuite, StatisticsCountHeadersPayloadsAndBf16Equivalents) {
  const TransferId id{1};
  Pages from(kLayout, 4, 0, 7);
  Pages into(kLayout, 4, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  this->post_all(id, from, "0123456789");
  ASSERT_TRUE(this->both_ended(id));
  const SendStats sent = this->sender_.events.sent(id).value();
  const ReceiveStats received = this->receiver_.events.received(id)->stats;
  // 3 layers of 4 int8 pages (2 heads, K and V: 16*64 + 32 bytes each), one frame a layer, one
  // commit.
  EXPECT_EQ(sent.frames, 4u);
  EXPECT_EQ(sent.wire_bytes, 3u * (72 + 4 * 2 * 2 * 1056) + 72 + 10);
  EXPECT_EQ(sent.raw_bytes, 3u * 4 * 2 * 2 * 16 * 64 * 2);
  EXPECT_EQ(received.frames, sent.frames);
  EXPECT_EQ(received.wire_bytes, sent.wire_bytes);
}

TYPED_TEST_P(TransportSuite, LayersMayBePostedInPiecesAndAnyOrder) {
  const TransferId id{1};
  Pages from(kLayout, 6, 0, 3);
  Pages into(kLayout, 6, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  for (const uint32_t layer : {2u, 0u, 1u}) {
    ASSERT_TRUE(this->post_layer(id, from, layer, 4, 2));
    ASSERT_TRUE(this->post_layer(id, from, layer, 0, 4));
  }
  ASSERT_TRUE(this->sender_.transport->post_commit(id, ""));
  ASSERT_TRUE(this->both_ended(id));
  EXPECT_TRUE(this->receiver_.events.received(id));
  EXPECT_TRUE(from == into);
}

TYPED_TEST_P(TransportSuite, ATailAloneAndACommitAloneAreWholeTransfers) {
  // Everything else of the prompt was cached at the receiver.
  const kv::KvLayout layout{2, 1, 64, kv::KvFormat::kInt4};
  Pages from(layout, 0, 16, 5);
  Pages into(layout, 0, 16);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(TransferId{1}, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(TransferId{1}, from)));
  this->post_all(TransferId{1}, from);
  Pages none(kLayout, 0, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(TransferId{2}, none)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(TransferId{2}, none)));
  this->post_all(TransferId{2}, none);
  ASSERT_TRUE(this->both_ended(TransferId{1}));
  ASSERT_TRUE(this->both_ended(TransferId{2}));
  EXPECT_TRUE(this->receiver_.events.received(TransferId{1}));
  EXPECT_TRUE(this->receiver_.events.received(TransferId{2}));
  EXPECT_TRUE(from == into);
}

TYPED_TEST_P(TransportSuite, LargeLayersAreCutIntoFramesAndManyTransfersShareTheWire) {
  const kv::KvLayout layout{2, 4, 128, kv::KvFormat::kBf16};  // 32 KiB pages
  std::vector<std::unique_ptr<Pages>> from;
  std::vector<std::unique_ptr<Pages>> into;
  for (uint64_t i = 1; i <= 8; ++i) {
    from.push_back(std::make_unique<Pages>(layout, 40, 0, i));
    into.push_back(std::make_unique<Pages>(layout, 40, 0));
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(TransferId{i}, *into.back())));
    ASSERT_TRUE(this->sender_.transport->open_send(this->spec(TransferId{i}, *from.back())));
  }
  for (uint64_t i = 1; i <= 8; ++i) this->post_all(TransferId{i}, *from[i - 1]);
  for (uint64_t i = 1; i <= 8; ++i) {
    ASSERT_TRUE(this->both_ended(TransferId{i}));
    EXPECT_TRUE(this->receiver_.events.received(TransferId{i}));
    EXPECT_GT(this->sender_.events.sent(TransferId{i})->frames, 2u + 1u);
    EXPECT_TRUE(*from[i - 1] == *into[i - 1]);
  }
}

// An open page costs what its tokens cost, and both sides must mean the same tokens.
TYPED_TEST_P(TransportSuite, OnlyTheUsedRowsOfAnOpenPageTravel) {
  const kv::KvLayout layout{2, 2, 64, kv::KvFormat::kInt4};
  for (const uint32_t rows : {1u, 3u, 16u}) {
    const TransferId id{rows};
    Pages from(layout, 1, rows, rows);
    Pages into(layout, 1, rows);
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
    ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
    this->post_all(id, from, "");
    ASSERT_TRUE(this->both_ended(id));
    ASSERT_TRUE(this->sender_.events.sent(id)) << this->sender_.events.send_failed(id)->detail;
    EXPECT_TRUE(from == into);  // rows that were not sent still hold what they held
    // Per layer 2 headers, an int4 page (2 heads, K 768 and V 640 bytes), rows of K and V in bf16.
    EXPECT_EQ(this->sender_.events.sent(id)->wire_bytes,
              2u * (2 * 72 + 2 * (768 + 640) + rows * 2 * 2 * 64 * 2) + 72);
  }
  const TransferId id{50};
  Pages from(layout, 0, 4, 9);
  Pages into(layout, 0, 5);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  (void)this->sender_.transport->post_tail(id, 0, from.tail(0));
  ASSERT_TRUE(this->both_ended(id));
  EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kCorruptData);
  EXPECT_NE(this->sender_.events.send_failed(id)->detail.find("4 rows, but 5"), std::string::npos);
  EXPECT_TRUE(into.untouched());
}

// Thousands of posts wait behind a full window here; each completion lets the next one go.
TYPED_TEST_P(TransportSuite, ALongQueueOfSmallFramesDrainsInConstantStack) {
  constexpr uint32_t kCount = 12'000;
  Node eager;
  this->start(eager, "eager", this->sender_.generation, {.max_queued_frames = kCount + 1});
  const kv::KvLayout layout{1, 1, 64, kv::KvFormat::kInt8};
  const TransferId id{1};
  Pages from(layout, kCount, 0, 3);
  Pages into(layout, kCount, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(eager.transport->open_send(this->spec(id, from)));
  for (uint32_t i = 0; i < kCount; ++i) {
    const std::span<const std::byte> page[] = {from.page(0, i)};
    ASSERT_TRUE(eager.transport->post_pages(id, 0, i, page));
  }
  ASSERT_TRUE(eager.transport->post_commit(id, ""));
  ASSERT_TRUE(this->backend_.until([&] { return eager.events.events(id) > 0; }));
  EXPECT_TRUE(eager.events.sent(id));
  EXPECT_TRUE(from == into);
}

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
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into, milliseconds(900))));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from, milliseconds(1200))));
  ASSERT_TRUE(this->post_layer(id, from, 0, 0, 2));
  // A frame that came after the deadline would be refused, which ends the sender's half earlier.
  ASSERT_TRUE(this->backend_.until([&] { return this->counted().frames_received > before; }));
  this->backend_.pass(milliseconds(900));
  ASSERT_TRUE(this->backend_.until([&] { return this->receiver_.events.events(id) > 0; }));
  EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kDeadlineExceeded);
  this->backend_.pass(milliseconds(400));
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

// failures.md 17: unequal layouts never mix, even if the handshake was passed.
TYPED_TEST_P(TransportSuite, AnotherKvLayoutFailsTheTransferOnBothSides) {
  uint64_t number = 1;
  for (const kv::KvLayout other :
       {kv::KvLayout{3, 2, 64, kv::KvFormat::kBf16}, kv::KvLayout{3, 1, 128, kv::KvFormat::kInt8},
        kv::KvLayout{4, 2, 64, kv::KvFormat::kInt8}}) {
    const TransferId id{number++};
    Pages from(other, 2, 0, 9);
    Pages into(kLayout, 2, 0);
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
    ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
    (void)this->post_layer(id, from, 0, 0, 2);
    ASSERT_TRUE(this->both_ended(id));
    EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kMismatch);
    EXPECT_EQ(this->sender_.events.send_failed(id)->code, ErrorCode::kMismatch);
    EXPECT_NE(this->sender_.events.send_failed(id)->detail.find("3 layers"), std::string::npos);
    EXPECT_TRUE(into.untouched());
  }
  this->expect_works(TransferId{50});
}

// failures.md 10, 14: what another start of either process sends is dropped and counted.
TYPED_TEST_P(TransportSuite, FramesOfAnotherGenerationAreDroppedAndCounted) {
  const TransferId id{1};
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  auto plan = this->plan(id, into);
  plan.sender = Generation{999};  // reserved for another prefill process
  ASSERT_TRUE(this->receiver_.transport->open_receive(plan));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  (void)this->post_layer(id, from, 0, 0, 2);
  ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(id) > 0; }));
  EXPECT_NE(this->sender_.events.send_failed(id)->detail.find("another sender"), std::string::npos);

  const TransferId stale{2};
  auto spec = this->spec(stale, from);
  spec.receiver = Generation{888};  // the receiver's earlier start
  ASSERT_TRUE(this->sender_.transport->open_send(spec));
  (void)this->post_layer(stale, from, 0, 0, 2);
  ASSERT_TRUE(this->backend_.until([&] { return this->sender_.events.events(stale) > 0; }));
  EXPECT_NE(this->sender_.events.send_failed(stale)->detail.find("restarted"), std::string::npos);
  this->backend_.settle();
  EXPECT_TRUE(into.untouched());
  EXPECT_EQ(this->receiver_.events.events(id), 0);  // the rightful transfer is not disturbed
  EXPECT_GE(this->counted().frames_rejected_generation, 2u);
}

TYPED_TEST_P(TransportSuite, AFencedSenderLosesItsTransfersAndCannotWriteAgain) {
  const TransferId id{1};
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  this->receiver_.transport->fence(this->sender_.generation);
  (void)this->post_layer(id, from, 0, 0, 2);
  ASSERT_TRUE(this->both_ended(id));
  EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kTransport);
  this->backend_.settle();
  EXPECT_TRUE(into.untouched());
  EXPECT_EQ(this->receiver_.transport->open_receive(this->plan(TransferId{2}, into)).error().code,
            ErrorCode::kUnavailable);
}

TYPED_TEST_P(TransportSuite, AReadmittedSenderWritesNewTransfersAndNoOldOne) {
  const TransferId old{1};
  Pages from(kLayout, 2, 0, 9);
  Pages before(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(old, before)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(old, from)));
  this->receiver_.transport->fence(this->sender_.generation);
  ASSERT_TRUE(this->backend_.until([&] { return this->receiver_.events.events(old) > 0; }));
  this->receiver_.transport->readmit(this->sender_.generation);
  (void)this->post_layer(old, from, 0, 0, 2);
  ASSERT_TRUE(this->both_ended(old));
  EXPECT_TRUE(before.untouched());
  EXPECT_FALSE(this->receiver_.transport->open_receive(this->plan(old, before)));
  const TransferId fresh{2};
  Pages into(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(fresh, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(fresh, from)));
  for (uint32_t layer = 0; layer < 3; ++layer)
    ASSERT_TRUE(this->post_layer(fresh, from, layer, 0, 2));
  ASSERT_TRUE(this->sender_.transport->post_commit(fresh, ""));
  ASSERT_TRUE(this->both_ended(fresh));
  EXPECT_TRUE(into == from);
}

TYPED_TEST_P(TransportSuite, ReplayedFramesAreDroppedAndCounted) {
  const TransferId id{1};
  Pages from(kLayout, 2, 0, 9);
  Pages other(kLayout, 2, 0, 10);
  Pages into(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  ASSERT_TRUE(this->sender_.transport->open_send(this->spec(id, from)));
  ASSERT_TRUE(this->post_layer(id, from, 0, 0, 2));
  ASSERT_TRUE(this->backend_.until([&] { return this->counted().frames_received == 1; }));
  // The same pages once more with other content, well-formed: the first one counts.
  this->backend_.inject(this->receiver_, "decode", this->data_frame(id, other, 0, 0, 2));
  ASSERT_TRUE(this->backend_.until([&] { return this->counted().frames_rejected_replayed == 1; }));
  for (uint32_t layer = 1; layer < 3; ++layer) ASSERT_TRUE(this->post_layer(id, from, layer, 0, 2));
  ASSERT_TRUE(this->sender_.transport->post_commit(id, ""));
  ASSERT_TRUE(this->both_ended(id));
  EXPECT_TRUE(from == into);
  // And after the end, when the blocks may be someone else's.
  this->backend_.inject(this->receiver_, "decode", this->data_frame(id, other, 0, 0, 2));
  ASSERT_TRUE(this->backend_.until([&] { return this->counted().frames_rejected_replayed == 2; }));
  EXPECT_TRUE(from == into);
  EXPECT_EQ(this->receiver_.events.events(id), 1);
}

TYPED_TEST_P(TransportSuite, HostileFramesAreCountedAndChangeNothing) {
  const TransferId id{1};
  Pages from(kLayout, 2, 0, 9);
  Pages into(kLayout, 2, 0);
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
  const Frame good = this->data_frame(id, from, 0, 0, 2);
  const auto inject = [&](Frame frame) {
    const uint64_t before = this->counted().frames_received;
    this->backend_.inject(this->receiver_, "decode", std::move(frame));
    ASSERT_TRUE(this->backend_.until([&] { return this->counted().frames_received > before; }));
    this->backend_.settle();  // counted on arrival, judged a moment later
  };
  for (const size_t byte : {0u, 4u, 6u, 8u, 40u, 52u, 70u}) {  // no field can be bent unnoticed
    Frame bent = good;
    bent.header[byte] ^= std::byte{0x40};
    inject(bent);
  }
  const TransportCounters after = this->counted();
  EXPECT_EQ(after.frames_rejected_checksum + after.frames_rejected_malformed, 7u);
  Frame stranger = good;  // unknown transfer
  proto::KvFrameHeader header = proto::parse_kv_header(good.header).value();
  header.transfer = TransferId{12345};
  stranger.header = proto::encode_kv_header(header);
  inject(stranger);
  EXPECT_EQ(this->counted().frames_rejected_unknown, 1u);
  Frame ack = make_ack_frame(this->origin(id));  // an answer nobody waits for
  inject(ack);
  EXPECT_TRUE(into.untouched());
  EXPECT_EQ(this->receiver_.events.events(id), 0);
  this->expect_works(TransferId{50});
}

TYPED_TEST_P(TransportSuite, AFrameOutsideItsReservationFailsThatTransferOnly) {
  Pages from(kLayout, 4, 0, 9);
  uint64_t number = 1;
  const auto expect_broken = [&](auto&& change) {
    const TransferId id{number++};
    Pages into(kLayout, 2, 0);
    ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into)));
    Frame frame = this->data_frame(id, from, 0, 0, 2);
    proto::KvFrameHeader header = proto::parse_kv_header(frame.header).value();
    change(header, frame);
    frame.header = proto::encode_kv_header(header);
    this->backend_.inject(this->receiver_, "decode", std::move(frame));
    ASSERT_TRUE(this->backend_.until([&] { return this->receiver_.events.events(id) > 0; }));
    EXPECT_EQ(this->receiver_.events.receive_failed(id)->code, ErrorCode::kCorruptData);
    EXPECT_TRUE(into.untouched());
  };
  expect_broken([](auto& header, Frame&) { header.layer = 3; });
  expect_broken([](auto& header, Frame&) { header.first_page = 1; });
  expect_broken([](auto& header, Frame&) { header.first_page = 0xffffffffu; });
  expect_broken([](auto& header, Frame&) { header.pages = 1; });
  expect_broken([](auto& header, Frame&) { header.payload_bytes += 1; });
  expect_broken([](auto&, Frame& frame) { frame.payload[100] ^= std::byte{1}; });
  expect_broken([](auto&, Frame& frame) { frame.payload.pop_back(); });
  expect_broken([](auto&, Frame& frame) { frame.payload.push_back({}); });
  expect_broken([](auto& header, Frame&) {  // a tail that was not reserved
    header.kind = proto::KvFrameKind::kTail;
    header.pages = 1;
  });
  this->expect_works(TransferId{50});
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

TYPED_TEST_P(TransportSuite, NamesWhatIsInUse) {
  EXPECT_FALSE(this->sender_.transport->name().empty());
  EXPECT_TRUE(this->sender_.transport->detail().starts_with(this->sender_.transport->name()));
}

REGISTER_TYPED_TEST_SUITE_P(
    TransportSuite, EveryFormatArrivesByteForByte, StatisticsCountHeadersPayloadsAndBf16Equivalents,
    LayersMayBePostedInPiecesAndAnyOrder, ATailAloneAndACommitAloneAreWholeTransfers,
    LargeLayersAreCutIntoFramesAndManyTransfersShareTheWire, OnlyTheUsedRowsOfAnOpenPageTravel,
    ALongQueueOfSmallFramesDrainsInConstantStack, TheSenderMayCancelInEveryPhase,
    TheReceiverMayCloseInEveryPhaseAndTheSenderLearnsIt, AfterCloseReceiveNoLateFrameWritesAByte,
    DeadlinesEndBothSidesOfASilentTransfer, AFailedPostReachesTheReceiverAsAnErrorFrame,
    PostsThatContradictTheSpecAreRefused, OpensAreCheckedAndBounded,
    AnotherKvLayoutFailsTheTransferOnBothSides, FramesOfAnotherGenerationAreDroppedAndCounted,
    AFencedSenderLosesItsTransfersAndCannotWriteAgain,
    AReadmittedSenderWritesNewTransfersAndNoOldOne, ReplayedFramesAreDroppedAndCounted,
    HostileFramesAreCountedAndChangeNothing, AFrameOutsideItsReservationFailsThatTransferOnly,
    ADeadReceiverFailsItsTransfersWithinASecond, AReceiverThatCameBackIsReachedAtItsNewAddress,
    NamesWhatIsInUse);

}  // namespace tandem::transport::testing
