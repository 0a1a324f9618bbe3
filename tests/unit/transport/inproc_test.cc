#include "common/transport/inproc/inproc.h"

#include "tests/unit/transport/transport_suite.h"

namespace tandem::transport::testing {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Inproc, TransportSuite, InprocBackend);

class InprocFaults : public ::testing::Test {
 protected:
  InprocFaults() {
    sender.generation = Generation{1};
    receiver.generation = Generation{2};
    sender.transport = hub.create("prefill", {sender.generation, clock, sender.events, limits});
    receiver.transport = hub.create("decode", {receiver.generation, clock, receiver.events, {}});
  }
  void open(TransferId id) {
    ReceivePlan plan{.id = id,
                     .sender = sender.generation,
                     .layout = kLayout,
                     .pages = 4,
                     .deadline = seconds(2)};
    plan.destination = [this](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    ASSERT_TRUE(receiver.transport->open_receive(plan));
    ASSERT_TRUE(sender.transport->open_send({.id = id,
                                             .receiver = receiver.generation,
                                             .address = receiver.transport->address(),
                                             .layout = kLayout,
                                             .pages = 4,
                                             .tail_rows = 0,
                                             .deadline = seconds(3)}));
  }
  void post_all(TransferId id) {
    for (uint32_t layer = 0; layer < kLayout.layers; ++layer) {
      for (uint32_t i = 0; i < 4; ++i) {  // small frames: more to go wrong
        const std::span<const std::byte> page[] = {from.page(layer, i)};
        if (!sender.transport->post_pages(id, layer, i, page)) return;
      }
    }
    (void)sender.transport->post_commit(id, "commit");
  }
  ManualClock clock;
  InprocHub hub{clock};
  TransportLimits limits{.max_queued_frames = 20};
  Node sender;
  Node receiver;
  Pages from{kLayout, 4, 0, 77};
  Pages into{kLayout, 4, 0};
};

TEST_F(InprocFaults, ReorderedAndDuplicatedFramesStillMakeAWholeTransfer) {
  hub.set_fault_hook(
      random_faults({.seed = 5, .duplicate = 0.5, .delay = 0.9, .max_delay = milliseconds(50)}));
  open(TransferId{1});
  post_all(TransferId{1});
  while (const auto due = hub.next_due()) {
    clock.advance(std::max(Duration::zero(), *due - clock.now()));
    hub.run();
  }
  EXPECT_TRUE(receiver.events.received(TransferId{1}));
  EXPECT_TRUE(sender.events.sent(TransferId{1}));
  EXPECT_TRUE(from == into);
  EXPECT_GT(receiver.transport->counters().frames_rejected_replayed, 0u);
  EXPECT_EQ(receiver.events.events(TransferId{1}), 1);
  EXPECT_EQ(sender.events.events(TransferId{1}), 1);
}

TEST_F(InprocFaults, ALostFrameEndsBothSidesByTheirDeadlines) {
  int seen = 0;
  hub.set_fault_hook([&](const FrameInfo& frame) {
    FrameFault fault;
    fault.drop = frame.header.kind == proto::KvFrameKind::kData && ++seen == 3;
    return fault;
  });
  open(TransferId{1});
  post_all(TransferId{1});
  hub.run();
  EXPECT_EQ(sender.events.events(TransferId{1}), 0);
  clock.advance(seconds(4));
  hub.run();
  EXPECT_EQ(receiver.events.receive_failed(TransferId{1})->code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(sender.events.send_failed(TransferId{1})->code, ErrorCode::kDeadlineExceeded);
}

TEST_F(InprocFaults, ACorruptPayloadIsNeverDelivered) {
  hub.set_fault_hook([](const FrameInfo& frame) {
    FrameFault fault;
    fault.corrupt_payload = frame.header.layer == 1;
    return fault;
  });
  open(TransferId{1});
  post_all(TransferId{1});
  hub.run();
  EXPECT_EQ(receiver.events.receive_failed(TransferId{1})->code, ErrorCode::kCorruptData);
  EXPECT_EQ(sender.events.send_failed(TransferId{1})->code, ErrorCode::kCorruptData);
  EXPECT_EQ(receiver.transport->counters().frames_rejected_checksum, 1u);
}

TEST_F(InprocFaults, AFullSendQueueFailsThePostAndTellsTheReceiver) {
  hub.set_fault_hook([](const FrameInfo& frame) {
    FrameFault fault;
    if (frame.header.kind == proto::KvFrameKind::kData) fault.delay = seconds(1);
    return fault;
  });
  open(TransferId{1});
  open(TransferId{2});
  post_all(TransferId{1});
  post_all(TransferId{2});  // 13 frames each, 20 fit
  hub.run();
  EXPECT_EQ(sender.events.send_failed(TransferId{2})->code, ErrorCode::kQueueFull);
  EXPECT_EQ(receiver.events.receive_failed(TransferId{2})->code, ErrorCode::kQueueFull);
  clock.advance(seconds(1));
  hub.run();
  EXPECT_TRUE(sender.events.sent(TransferId{1}));
}

TEST_F(InprocFaults, TheSameSeedGivesTheSameRun) {
  const auto history = [](uint64_t seed) {
    auto hook = random_faults(
        {.seed = seed, .drop = 0.3, .duplicate = 0.3, .delay = 0.5, .max_delay = milliseconds(9)});
    const proto::KvFrameHeader header;
    std::string text;
    for (int i = 0; i < 200; ++i) {
      const FrameFault f = hook({"a", "b", header, 0});
      text += std::to_string(f.drop) + std::to_string(f.copies) + std::to_string(f.delay.count());
    }
    return text;
  };
  EXPECT_EQ(history(3), history(3));
  EXPECT_NE(history(3), history(4));
}

TEST(InprocPump, MovesFramesInRealTime) {
  SteadyClock clock;
  InprocHub hub(clock);
  Node sender;
  Node receiver;
  sender.transport = hub.create("a", {Generation{1}, clock, sender.events, {}});
  receiver.transport = hub.create("b", {Generation{2}, clock, receiver.events, {}});
  Pages from(kLayout, 2, 0, 3);
  Pages into(kLayout, 2, 0);
  {
    const InprocPump pump(hub);
    ReceivePlan plan{.id = TransferId{1},
                     .sender = Generation{1},
                     .layout = kLayout,
                     .pages = 2,
                     .deadline = seconds(20)};
    plan.destination = [&](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    ASSERT_TRUE(receiver.transport->open_receive(plan));
    ASSERT_TRUE(sender.transport->open_send({.id = TransferId{1},
                                             .receiver = Generation{2},
                                             .address = receiver.transport->address(),
                                             .layout = kLayout,
                                             .pages = 2,
                                             .tail_rows = 0,
                                             .deadline = seconds(20)}));
    for (uint32_t layer = 0; layer < 3; ++layer) {
      const std::span<const std::byte> pages[] = {from.page(layer, 0), from.page(layer, 1)};
      ASSERT_TRUE(sender.transport->post_pages(TransferId{1}, layer, 0, pages));
    }
    ASSERT_TRUE(sender.transport->post_commit(TransferId{1}, "c"));
    const TimePoint give_up = clock.now() + seconds(20);
    while (!sender.events.sent(TransferId{1}) && clock.now() < give_up) std::this_thread::yield();
  }
  EXPECT_TRUE(sender.events.sent(TransferId{1}));
  EXPECT_TRUE(from == into);
}

}  // namespace
}  // namespace tandem::transport::testing
