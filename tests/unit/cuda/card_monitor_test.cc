#include "common/cuda/card_monitor.h"

#include <gtest/gtest.h>

namespace tandem::cuda {
namespace {

// With tests/support/fake_driver/libnvidia_ml.cc.
Result<CardMonitor> open_fake() {
  const std::string folder = TANDEM_FAKE_NVML;
  return CardMonitor::open(std::span(&folder, 1));
}

TEST(CardMonitorTest, ReadsEachLinkOfADriverThatHasNoFieldsForThem) {
  auto monitor = open_fake();
  ASSERT_TRUE(monitor) << monitor.error().to_string();
  const auto cards = monitor->read_all();
  ASSERT_TRUE(cards) << cards.error().to_string();
  ASSERT_EQ(cards->size(), 2u);
  const LinkState whole = link_state((*cards)[0]);
  EXPECT_EQ(whole.links, 18u);
  EXPECT_EQ(whole.active, 18u);
  EXPECT_EQ(whole.bytes_per_second, 18 * 26'562'000'000u);
  EXPECT_EQ(whole.replays, 18u * 100 + 17 * 18 / 2);
  EXPECT_EQ(whole.recoveries, 17u * 18 / 2);
  EXPECT_TRUE(link_problems((*cards)[0], nullptr, 0).empty());
  EXPECT_EQ(link_state((*cards)[1]).active, 17u);
  EXPECT_FALSE((*cards)[1].nvlinks[3].active);
  EXPECT_FALSE(link_problems((*cards)[1], nullptr, 0).empty());
}

TEST(CardMonitorTest, CardsAreJoinedByTheLinksThatBothHave) {
  auto monitor = open_fake();
  ASSERT_TRUE(monitor) << monitor.error().to_string();
  const auto pairs = monitor->topology();
  ASSERT_TRUE(pairs) << pairs.error().to_string();
  EXPECT_EQ((*pairs)[0][1].path, PairPath::kNvLink);
  EXPECT_EQ((*pairs)[0][1].nvlinks, 17u);
  EXPECT_EQ((*pairs)[0][1].nvlinks_all, 18u);
}

}  // namespace
}  // namespace tandem::cuda
