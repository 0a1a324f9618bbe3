// Offers whose checksums follow: what a receiver of pages that it reads in place admits, and when.
// The sender is a stranger that says what each test wants.
#include <gtest/gtest.h>

#include <thread>

#include "common/transport/direct/direct_transport.h"
#include "common/transport/direct/page_copier.h"
#include "tests/unit/transport/direct_stranger.h"
#include "tests/unit/transport/host_fabric.h"
#include "tests/unit/transport/transport_fixture.h"

namespace tandem::transport::testing {
namespace {

using proto::KvFrameKind;

constexpr TransferId kOnly{1};
constexpr Generation kSender{9999};
constexpr Generation kReceiver{2};
constexpr uint32_t kPages = 3;

class SumsThatFollow : public ::testing::Test {
 protected:
  SumsThatFollow() {
    receiver_.transport = create_direct_transport(std::make_unique<HostFabric>(HostMode::kPull),
                                                  {kReceiver, clock_, receiver_.events, {}})
                              .value();
    ReceivePlan plan{.id = kOnly,
                     .sender = kSender,
                     .layout = kLayout,
                     .pages = kPages,
                     .deadline = seconds(20)};
    plan.destination = [this](uint32_t layer, uint32_t i) { return into_.page(layer, i); };
    EXPECT_TRUE(receiver_.transport->open_receive(std::move(plan)));
  }
  void offer(uint32_t layer) {
    FieldWriter note;
    for (uint32_t i = 0; i < kPages; ++i) {
      note.put(reinterpret_cast<uint64_t>(from_.page(layer, i).data()));
    }
    say(layer, encode_offer({kPages, {}, note.take()}), MessageKind::kFrame);
  }
  std::vector<uint64_t> sums_of(uint32_t layer) {
    std::vector<uint64_t> sums;
    for (uint32_t i = 0; i < kPages; ++i) sums.push_back(piece_checksum(from_.page(layer, i)));
    return sums;
  }
  void sums(uint32_t layer, const std::vector<uint64_t>& sums) {
    say(layer, encode_sums(sums), MessageKind::kSums);
  }
  void commit() { stranger_.send(address(), fabric_, make_commit_frame(origin(), "c")); }
  void say(uint32_t layer, std::string_view payload, MessageKind kind) {
    const size_t bytes = kPages * from_.page(0, 0).size();
    stranger_.send(address(), fabric_,
                   make_offer_frame(origin(), KvFrameKind::kData, layer, 0, kPages, bytes, payload),
                   kind);
  }
  FrameOrigin origin() const {
    return {kOnly, kSender, kReceiver, geometry_hash(kLayout),
            static_cast<uint8_t>(kLayout.format)};
  }
  std::string address() const { return receiver_.transport->address(); }
  bool until(const std::function<bool()>& done) {
    const TimePoint give_up = clock_.now() + seconds(10);
    while (!done() && clock_.now() < give_up) std::this_thread::sleep_for(milliseconds(1));
    return done();
  }
  void expect_corrupt() {
    ASSERT_TRUE(until([&] { return receiver_.events.events(kOnly) > 0; }));
    ASSERT_TRUE(receiver_.events.receive_failed(kOnly));
    EXPECT_EQ(receiver_.events.receive_failed(kOnly)->code, ErrorCode::kCorruptData);
    EXPECT_FALSE(receiver_.events.received(kOnly));
  }

  SteadyClock clock_;
  Pages from_{kLayout, kPages, 0, 5};
  Pages into_{kLayout, kPages, 0};
  Node receiver_;
  HostFabric fabric_{HostMode::kPull};
  DirectStranger stranger_;
};

TEST_F(SumsThatFollow, NothingIsReceivedBeforeTheLastOfThem) {
  for (uint32_t layer = 0; layer < kLayout.layers; ++layer) offer(layer);
  commit();
  for (uint32_t layer = 0; layer + 1 < kLayout.layers; ++layer) sums(layer, sums_of(layer));
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(receiver_.events.events(kOnly), 0);
  sums(kLayout.layers - 1, sums_of(kLayout.layers - 1));
  EXPECT_TRUE(until([&] { return receiver_.events.received(kOnly).has_value(); }));
  EXPECT_TRUE(from_ == into_);
}

TEST_F(SumsThatFollow, AWrongOneFailsTheTransfer) {
  offer(0);
  std::vector<uint64_t> wrong = sums_of(0);
  wrong.back() ^= 1;
  sums(0, wrong);
  expect_corrupt();
}

TEST_F(SumsThatFollow, TooFewOrNoneFailTheTransfer) {
  offer(0);
  sums(0, {});  // as of a sender whose transfer ended meanwhile
  expect_corrupt();
}

TEST_F(SumsThatFollow, OnesThatDoNotHoldFailTheTransfer) {
  offer(0);
  const size_t bytes = kPages * from_.page(0, 0).size();
  Frame frame =
      make_offer_frame(origin(), KvFrameKind::kData, 0, 0, kPages, bytes, encode_sums(sums_of(0)));
  frame.payload[3] ^= std::byte{1};
  stranger_.send(address(), fabric_, frame, MessageKind::kSums);
  expect_corrupt();
}

TEST_F(SumsThatFollow, AnOfferThatWasPassedOverFailsTheTransfer) {
  offer(0);
  offer(1);
  sums(1, sums_of(1));
  expect_corrupt();
}

TEST_F(SumsThatFollow, OnesOfNoOfferChangeNothing) {
  sums(1, sums_of(1));
  for (uint32_t layer = 0; layer < kLayout.layers; ++layer) {
    offer(layer);
    sums(layer, sums_of(layer));
    sums(layer, {});  // once more
  }
  commit();
  EXPECT_TRUE(until([&] { return receiver_.events.received(kOnly).has_value(); }));
  EXPECT_TRUE(from_ == into_);
}

// They may not come with the offer where the fabric lets them follow.
TEST_F(SumsThatFollow, AnOfferThatHasThemAlreadyFailsTheTransfer) {
  say(0, encode_offer({kPages, sums_of(0), std::string(kPages * sizeof(uint64_t), 0)}),
      MessageKind::kFrame);
  expect_corrupt();
}

}  // namespace
}  // namespace tandem::transport::testing
