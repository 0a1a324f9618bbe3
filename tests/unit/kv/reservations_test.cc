#include "common/kv/reservations.h"

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

constexpr Generation kWriter{11};
constexpr Generation kOther{12};

class ReservationsTest : public ::testing::Test {
 protected:
  Status open(uint64_t id, Generation writer = kWriter, Duration lease = std::chrono::seconds(5)) {
    Reservation r{.id = TransferId{id},
                  .request = RequestId{id},
                  .writer = writer,
                  .deadline = clock.now() + lease,
                  .blocks = {}};
    r.blocks.append(pool->allocate(2).value());
    return reservations.open(std::move(r));
  }
  ManualClock clock;
  std::unique_ptr<BlockPool> pool =
      BlockPool::create({.layout = {1, 1, 32, KvFormat::kInt8}, .blocks = 8, .poison = true})
          .value();
  Reservations reservations{3};
};

TEST_F(ReservationsTest, CompletionHandsTheBlocksOver) {
  ASSERT_TRUE(open(1));
  Reservation done = reservations.complete(TransferId{1}).value();
  EXPECT_EQ(done.blocks.size(), 2u);
  EXPECT_EQ(pool->held_blocks(), 2u);
  EXPECT_EQ(reservations.complete(TransferId{1}).error().code, ErrorCode::kNotFound);
}

// failures.md 15: a late write must find the blocks still out of use.
TEST_F(ReservationsTest, AbandonedBlocksAreNotReusedBeforeTheWriterIsQuiet) {
  ASSERT_TRUE(open(1));
  EXPECT_TRUE(reservations.abandon(TransferId{1}));
  EXPECT_EQ(pool->held_blocks(), 2u);
  EXPECT_FALSE(reservations.complete(TransferId{1}));
  EXPECT_EQ(reservations.find(TransferId{1}), nullptr);
  reservations.quiesced(TransferId{1});
  EXPECT_EQ(pool->held_blocks(), 0u);
  EXPECT_FALSE(reservations.abandon(TransferId{1}));
}

// failures.md 1, 2, 7: a silent writer's blocks return by the clock alone.
TEST_F(ReservationsTest, LeasesExpireOnATickWithoutNewWork) {
  ASSERT_TRUE(open(2, kWriter, std::chrono::seconds(1)));
  ASSERT_TRUE(open(1, kWriter, std::chrono::seconds(1)));
  ASSERT_TRUE(open(3, kWriter, std::chrono::seconds(9)));
  EXPECT_TRUE(reservations.sweep(clock.now()).empty());
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(reservations.sweep(clock.now()), (std::vector{TransferId{1}, TransferId{2}}));
  EXPECT_TRUE(reservations.sweep(clock.now()).empty());
  EXPECT_EQ(pool->held_blocks(), 6u);
  reservations.quiesced(TransferId{1});
  reservations.quiesced(TransferId{2});
  EXPECT_EQ(pool->held_blocks(), 2u);
  EXPECT_EQ(reservations.counters().expired, 2u);
}

// failures.md 10, 14: fencing a generation frees what it could write, and nothing else.
TEST_F(ReservationsTest, FencingAWriterFreesItsBlocksOnly) {
  ASSERT_TRUE(open(1, kWriter));
  ASSERT_TRUE(open(2, kOther));
  ASSERT_TRUE(open(3, kWriter));
  EXPECT_TRUE(reservations.abandon(TransferId{3}));
  EXPECT_EQ(reservations.fence(kWriter), (std::vector{TransferId{1}}));
  EXPECT_EQ(pool->held_blocks(), 2u);
  EXPECT_NE(reservations.find(TransferId{2}), nullptr);
  EXPECT_EQ(reservations.quarantined_count(), 0u);
}

TEST_F(ReservationsTest, DuplicatesAndOverflowAreRefusedWithoutLeaks) {
  ASSERT_TRUE(open(1));
  EXPECT_EQ(open(1).error().param, "transfer_id");
  EXPECT_EQ(pool->held_blocks(), 2u);
  reservations.abandon(TransferId{1});
  EXPECT_EQ(open(1).error().param, "transfer_id");  // its writer may still be writing
  reservations.quiesced(TransferId{1});
  ASSERT_TRUE(open(1));
  ASSERT_TRUE(open(2));
  ASSERT_TRUE(open(3));
  EXPECT_EQ(open(4).error().code, ErrorCode::kQueueFull);
  EXPECT_EQ(pool->held_blocks(), 6u);
}

}  // namespace
}  // namespace tandem::kv
