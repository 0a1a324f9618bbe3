#include "common/transport/direct/slot_space.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace tandem::transport {
namespace {

constexpr size_t kUnit = 512;  // what slots are rounded up to

class SlotSpaceTest : public ::testing::Test {
 protected:
  [[nodiscard]] size_t place(const std::byte* slot) const {
    return static_cast<size_t>(slot - memory.data());
  }
  std::vector<std::byte> memory = std::vector<std::byte>(10 * kUnit);
  SlotSpace space{memory.data(), memory.size()};
};

TEST_F(SlotSpaceTest, AHeldSlotKeepsNobodyFromTheRest) {
  std::byte* const held = space.take(4 * kUnit);
  std::byte* const other = space.take(4 * kUnit);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(space.take(4 * kUnit), nullptr);
  for (int i = 0; i < 3; ++i) {
    space.put(other);
    EXPECT_EQ(space.take(4 * kUnit), other);
  }
  EXPECT_NE(space.take(2 * kUnit), nullptr);
  EXPECT_EQ(space.take(1), nullptr);
  EXPECT_EQ(place(held), 0u);
}

TEST_F(SlotSpaceTest, NeighboursJoinInAnyOrderOfReturns) {
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}};
  for (const auto& order : orders) {
    std::byte* const slots[] = {space.take(3 * kUnit), space.take(3 * kUnit),
                                space.take(4 * kUnit)};
    EXPECT_EQ(space.take(1), nullptr);
    for (const size_t i : order) space.put(slots[i]);
    std::byte* const whole = space.take(10 * kUnit);
    ASSERT_EQ(whole, memory.data());
    space.put(whole);
  }
}

TEST_F(SlotSpaceTest, ShortOnesShareTheMemoryOfALongOne) {
  std::byte* const whole = space.take(10 * kUnit);
  ASSERT_NE(whole, nullptr);
  space.put(whole);
  for (int i = 0; i < 10; ++i) EXPECT_NE(space.take(1), nullptr) << i;
  EXPECT_EQ(space.take(1), nullptr);
  EXPECT_EQ(SlotSpace(memory.data(), kUnit - 1).take(1), nullptr);
  EXPECT_EQ(SlotSpace().take(1), nullptr);
}

// Whatever is out at one time lies apart, aligned and inside.
TEST_F(SlotSpaceTest, NoTwoSlotsOverlap) {
  memory.resize(200 * kUnit);
  space = SlotSpace(memory.data(), memory.size());
  std::map<size_t, size_t> out;
  uint64_t state = 7;
  size_t taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const size_t draw = state >> 40;
    const size_t bytes = 1 + draw % (20 * kUnit);
    if (std::byte* const slot = draw % 3 != 0 ? space.take(bytes) : nullptr) {
      ++taken;
      const auto [here, fresh] = out.emplace(place(slot), bytes);
      ASSERT_TRUE(fresh);
      ASSERT_EQ(here->first % kUnit, 0u);
      ASSERT_LE(here->first + bytes, memory.size());
      const auto next = std::next(here);
      ASSERT_TRUE(next == out.end() || here->first + bytes <= next->first);
      ASSERT_TRUE(here == out.begin() ||
                  std::prev(here)->first + std::prev(here)->second <= here->first);
    } else if (!out.empty()) {
      const auto which = std::next(out.begin(), static_cast<long>(draw / 3 % out.size()));
      space.put(memory.data() + which->first);
      out.erase(which);
    }
  }
  EXPECT_GT(taken, 3000u);
  for (const auto& [begin, bytes] : out) space.put(memory.data() + begin);
  EXPECT_EQ(space.take(200 * kUnit), memory.data());
}

}  // namespace
}  // namespace tandem::transport
