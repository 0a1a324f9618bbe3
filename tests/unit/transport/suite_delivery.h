#pragma once

// What arrives, and how it is counted.

#include "tests/unit/transport/transport_fixture.h"

namespace tandem::transport::testing {

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
  ASSERT_TRUE(this->receiver_.transport->open_receive(this->plan(id, into, seconds(55))));
  ASSERT_TRUE(eager.transport->open_send(this->spec(id, from, seconds(55))));
  for (uint32_t i = 0; i < kCount; ++i) {
    const std::span<const std::byte> page[] = {from.page(0, i)};
    ASSERT_TRUE(eager.transport->post_pages(id, 0, i, page));
  }
  ASSERT_TRUE(eager.transport->post_commit(id, ""));
  ASSERT_TRUE(this->backend_.until([&] { return eager.events.events(id) > 0; }));
  EXPECT_TRUE(eager.events.sent(id));
  EXPECT_TRUE(from == into);
}

}  // namespace tandem::transport::testing
