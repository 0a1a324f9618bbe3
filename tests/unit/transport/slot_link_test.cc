#include "common/transport/direct/slot_link.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/transport/direct/wire_format.h"

namespace tandem::transport {
namespace {

constexpr size_t kPage = 1024;

// One end; what it would send or receive is only noted.
class NotedLink final : public SlotLink {
 public:
  NotedLink(const Slots& slots, bool sender) : SlotLink(slots, sender) {}
  std::string detail() const override { return "noted"; }
  Result<bool> ready() override { return true; }
  bool busy() const override { return false; }
  void end(uint64_t id) { ended(id); }
  void drop(uint64_t id) { lose(id); }
  struct Noted {
    uint64_t id;
    size_t at;  // in its memory
    size_t bytes;
    bool operator==(const Noted&) const = default;
  };
  std::vector<Noted> noted;
  const SlotSpace* space = nullptr;

 private:
  Status send(const Message& m) override {
    noted.push_back({m.id, space->place(m.data), m.bytes});
    return {};
  }
  Status receive(const Message& m) override { return send(m); }
};

class SlotLinkTest : public ::testing::Test {
 protected:
  SlotLinkTest() { sender.space = &sends, receiver.space = &receives; }
  // One frame of so many pages, offered.
  uint64_t offer(uint32_t pages) {
    std::vector<Piece> pieces(pages, {nullptr, nullptr, kPage});
    const auto staged = sender.stage(pieces);
    EXPECT_TRUE(staged && *staged);
    EXPECT_EQ(pieces.back().to - pieces.front().to, static_cast<ptrdiff_t>((pages - 1) * kPage));
    return take(**staged, pages);
  }
  uint64_t take(const Link::Staged& staged, uint32_t pages) {
    std::vector<Piece> pieces(pages, {nullptr, nullptr, kPage});
    const auto arrival = receiver.accept(staged.note, pieces);
    EXPECT_TRUE(arrival);
    return *arrival;
  }
  // Where the frame will be in the receiver's memory; empty: no room.
  std::optional<size_t> grant(uint64_t arrival) {
    std::vector<Piece> pieces(1, {nullptr, nullptr, kPage});
    const auto granted = receiver.grant(arrival, pieces);
    EXPECT_TRUE(granted);
    if (!*granted) return std::nullopt;
    return receives.place(pieces.front().from);
  }

  std::vector<std::byte> memory = std::vector<std::byte>(32 * kPage);
  SlotSpace sends{memory.data(), 16 * kPage};
  SlotSpace receives{memory.data() + 16 * kPage, 8 * kPage};
  const SlotLink::Slots slots{"noted", sends, receives, 4 * kPage, 6 * kPage};
  NotedLink sender{slots, true};
  NotedLink receiver{slots, false};
};

TEST_F(SlotLinkTest, WhatIsOfferedByThenGoesAsOneMessage) {
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(offer(2), i);
  EXPECT_EQ(grant(1), 0u);
  EXPECT_EQ(grant(2), 2 * kPage);
  EXPECT_EQ(grant(3), 4 * kPage);
  EXPECT_EQ(receiver.goes(1), 0u);
  EXPECT_EQ(receiver.goes(2), 0u);
  EXPECT_EQ(receiver.goes(3), 3u);
  ASSERT_TRUE(sender.launch_run(3, 3));
  const std::vector<NotedLink::Noted> one{{3, 0, 6 * kPage}};
  EXPECT_EQ(receiver.noted, one);
  EXPECT_EQ(sender.noted, one);
  EXPECT_FALSE(receiver.arrived(1).value());
  receiver.end(3);
  sender.end(3);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(receiver.arrived(i).value());
  // Every part goes back by itself, at both ends.
  receiver.release(2);
  EXPECT_EQ(receives.place(receives.take(2 * kPage)), 2 * kPage);
  receiver.release(1);
  receiver.release(3);
  EXPECT_NE(sends.take(16 * kPage), nullptr);
}

TEST_F(SlotLinkTest, AMessageIsNoLargerThanItMayBe) {
  for (int i = 0; i < 4; ++i) offer(3);
  for (uint64_t i = 1; i <= 2; ++i) EXPECT_TRUE(grant(i));
  EXPECT_EQ(receiver.goes(2), 2u);
  EXPECT_EQ(receiver.noted.size(), 1u);
}

// With room for the first only, it does not wait for the rest.
TEST_F(SlotLinkTest, WhereThereIsLittleRoomFramesGoOneByOne) {
  std::byte* const held = receives.take(5 * kPage);
  offer(3);
  offer(3);
  EXPECT_EQ(grant(1), 5 * kPage);
  EXPECT_EQ(receiver.goes(1), 1u);
  EXPECT_EQ(grant(2), std::nullopt);
  receives.put(held);
  EXPECT_EQ(grant(2), 0u);
  EXPECT_EQ(receiver.goes(2), 1u);
}

// One between them was given up before it was offered.
TEST_F(SlotLinkTest, FramesThatLieApartAreTwoMessages) {
  offer(2);
  std::vector<Piece> pieces(2, {nullptr, nullptr, kPage});
  const auto staged = sender.stage(pieces);
  ASSERT_TRUE(staged && *staged);
  EXPECT_EQ(offer(2), 3u);
  sender.abandon(2);
  EXPECT_TRUE(grant(1));
  EXPECT_TRUE(grant(3));
  EXPECT_EQ(receiver.goes(1), 1u);
  EXPECT_EQ(receiver.goes(3), 1u);
  EXPECT_EQ(sender.launch_run(3, 2).error().code, ErrorCode::kCorruptData);
  EXPECT_TRUE(sender.launch_run(3, 1));
}

TEST_F(SlotLinkTest, AGoForWhatWasNotOfferedIsRefused) {
  offer(1);
  offer(1);
  EXPECT_EQ(sender.launch_run(9, 1).error().code, ErrorCode::kCorruptData);
  EXPECT_EQ(sender.launch_run(2, 3).error().code, ErrorCode::kCorruptData);
  ASSERT_TRUE(sender.launch(2));
  EXPECT_EQ(sender.launch_run(2, 2).error().code, ErrorCode::kCorruptData) << "one was sent";
  EXPECT_EQ(sender.noted.size(), 1u);
}

TEST_F(SlotLinkTest, AnImpossibleOfferIsRefused) {
  std::vector<Piece> pieces(1, {nullptr, nullptr, kPage});
  const auto staged = sender.stage(pieces);
  ASSERT_TRUE(staged && *staged);
  EXPECT_EQ(take(**staged, 1), 1u);
  EXPECT_EQ(receiver.accept((*staged)->note, pieces).error().code, ErrorCode::kCorruptData);
  EXPECT_EQ(receiver.accept("note", pieces).error().code, ErrorCode::kCorruptData);
  std::vector<Piece> many(5, {nullptr, nullptr, kPage});
  EXPECT_EQ(sender.stage(many).error().code, ErrorCode::kInvalidArgument);
}

// Sizes and places are the peer's word: slots can only be cut apart where they are aligned.
TEST_F(SlotLinkTest, FramesOfOddSizesAreNotJoinedWhateverTheirSenderSays) {
  constexpr size_t kOdd = kPage + 4;
  std::vector<Piece> odd(1, {nullptr, nullptr, kOdd});
  for (uint64_t slot = 1; slot <= 2; ++slot) {
    const std::string note = FieldWriter().put(slot).put((slot - 1) * kOdd).take();
    EXPECT_TRUE(receiver.accept(note, odd));
  }
  EXPECT_EQ(grant(1), 0u);
  EXPECT_EQ(receiver.goes(1), 1u);
  EXPECT_TRUE(grant(2));
  EXPECT_EQ(receiver.goes(2), 1u);
  std::vector<Piece> none(1, {nullptr, nullptr, 0});
  const std::string note = FieldWriter().put(uint64_t{3}).put(uint64_t{0}).take();
  EXPECT_EQ(receiver.accept(note, none).error().code, ErrorCode::kCorruptData);
}

// A peer may still write there: nobody else gets it.
TEST_F(SlotLinkTest, ALostMessageKeepsItsRoom) {
  {
    NotedLink link{slots, false};
    link.space = &receives;
    std::vector<Piece> pieces(2, {nullptr, nullptr, kPage});
    const auto staged = sender.stage(pieces);
    ASSERT_TRUE(staged && *staged);
    const auto arrival = link.accept((*staged)->note, pieces);
    ASSERT_TRUE(arrival);
    ASSERT_TRUE(link.grant(*arrival, pieces).value());
    link.drop(1);
  }
  EXPECT_EQ(receives.take(7 * kPage), nullptr);
  EXPECT_NE(receives.take(6 * kPage), nullptr);
}

}  // namespace
}  // namespace tandem::transport
