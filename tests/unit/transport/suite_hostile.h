#pragma once

// Frames that must not be believed: other layouts, generations, ranges, and replays.

#include "tests/unit/transport/transport_fixture.h"

namespace tandem::transport::testing {

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
  // The pages, not only their offer: until then another frame of them is no replay.
  ASSERT_TRUE(this->backend_.until(
      [&] { return this->counted().bytes_received >= 2 * kLayout.page_bytes(); }));
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

}  // namespace tandem::transport::testing
