#include "common/cuda/card_health.h"

#include <gtest/gtest.h>

#include "common/cuda/card_monitor.h"

namespace tandem::cuda {
namespace {

constexpr uint64_t kLink = 26'562'000'000;  // NVLink 4: 26.562 GB/s a link

CardHealth h200(uint32_t active = 18) {
  CardHealth card;
  card.name = "NVIDIA H200";
  card.nvlinks.resize(18);
  for (uint32_t i = 0; i < 18; ++i) {
    card.nvlinks[i].active = i < active;
    card.nvlinks[i].bytes_per_second = kLink;
    card.nvlinks[i].replays = 1000 * i;  // old troubles
    card.nvlinks[i].recoveries = 3;
    card.nvlinks[i].crc_errors = 7;
  }
  card.pcie_lanes = card.pcie_lanes_max = 16;
  card.pcie_generation = 1;  // idle
  card.pcie_generation_max = 5;
  card.ecc_uncorrected = 2;
  return card;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

TEST(LinkHealth, AddsUpTheLinksThatWork) {
  const LinkState state = link_state(h200(17));
  EXPECT_EQ(state.links, 18u);
  EXPECT_EQ(state.active, 17u);
  EXPECT_EQ(state.bytes_per_second, 17 * kLink);
  EXPECT_EQ(state.recoveries, 54u);
}

TEST(LinkHealth, AHealthyCardHasNoProblemsWhateverItsPast) {
  const CardHealth card = h200();
  EXPECT_EQ(joined(link_problems(card, nullptr, 0)), "");
  EXPECT_EQ(joined(link_problems(card, &card, 10)), "");
}

TEST(LinkHealth, LinksThatAreDownAreADegradedCardButNoneAtAllIsACardByItself) {
  EXPECT_EQ(joined(link_problems(h200(12), nullptr, 0)), "12 of 18 NVLinks are up\n");
  EXPECT_EQ(joined(link_problems(h200(0), nullptr, 0)), "");
  EXPECT_EQ(joined(link_problems(CardHealth{}, nullptr, 0)), "");
}

TEST(LinkHealth, ALinkThatGoesDownWhileServingIsTold) {
  const CardHealth before = h200(18);
  EXPECT_NE(joined(link_problems(h200(16), &before, 5)).find("2 NVLinks went down"),
            std::string::npos);
  EXPECT_NE(joined(link_problems(h200(0), &before, 5)).find("18 NVLinks went down"),
            std::string::npos);
}

TEST(LinkHealth, ASlowLinkAndMissingLanesAreTold) {
  CardHealth card = h200();
  card.nvlinks[3].bytes_per_second = kLink / 2;
  card.pcie_lanes = 8;
  const std::string text = joined(link_problems(card, nullptr, 0));
  EXPECT_NE(text.find("an NVLink runs at 13281 MB/s while others run at 26562"), std::string::npos)
      << text;
  EXPECT_NE(text.find("PCIe runs on 8 of 16 lanes"), std::string::npos) << text;
}

TEST(LinkHealth, ErrorsCountByTheirRate) {
  const CardHealth before = h200();
  CardHealth now = h200();
  *now.nvlinks[0].replays += 10;
  EXPECT_EQ(joined(link_problems(now, &before, 10)), "");  // one a second is tolerated
  *now.nvlinks[0].replays += 1;
  EXPECT_EQ(joined(link_problems(now, &before, 10)), "11 NVLink replays in the last 10 s\n");
  now = h200();
  *now.nvlinks[5].recoveries += 1;
  EXPECT_EQ(joined(link_problems(now, &before, 10)), "1 NVLink recoveries\n");
  now = h200();
  *now.nvlinks[5].crc_errors += 100;
  EXPECT_EQ(joined(link_problems(now, &before, 10)), "100 NVLink CRC errors in the last 10 s\n");
  now = h200();
  *now.ecc_uncorrected += 1;
  EXPECT_EQ(joined(link_problems(now, &before, 10)), "1 uncorrectable memory errors\n");
}

TEST(LinkHealth, CountersThatStartAgainAreNoErrors) {
  const CardHealth before = h200();
  CardHealth now = h200();
  for (NvLink& link : now.nvlinks) link.replays = link.recoveries = link.crc_errors = 0;
  now.ecc_uncorrected = 0;
  EXPECT_EQ(joined(link_problems(now, &before, 10)), "");
}

TEST(PairVerdictTest, FullNvLinkIsChosenWithoutAWord) {
  const PairVerdict v = judge_pair({PairPath::kNvLink, 18, 18}, {}, {});
  EXPECT_TRUE(v.peer_access);
  EXPECT_FALSE(v.degraded);
  EXPECT_EQ(v.reason, "");
}

TEST(PairVerdictTest, ADegradedLinkIsReportedAndAvoidedOnceTheHostIsFaster) {
  PairVerdict v = judge_pair({PairPath::kNvLink, 12, 18}, {"12 of 18 NVLinks are up"}, {});
  EXPECT_TRUE(v.peer_access);
  EXPECT_TRUE(v.degraded);
  EXPECT_EQ(v.reason, "12 of 18 NVLinks are up");
  v = judge_pair({PairPath::kNvLink, 4, 18}, {"4 of 18 NVLinks are up"}, {});
  EXPECT_FALSE(v.peer_access);
  EXPECT_TRUE(v.degraded);
  EXPECT_NE(v.reason.find("only 4 of 18"), std::string::npos);
  EXPECT_FALSE(judge_pair({PairPath::kNvLink, 0, 18}, {}, {}).peer_access);
}

TEST(PairVerdictTest, WithoutNvLinkOnlyAPcieSwitchIsWorthIt) {
  EXPECT_TRUE(judge_pair({PairPath::kSameCard, 0, 0}, {"a problem"}, {}).peer_access);
  EXPECT_FALSE(judge_pair({PairPath::kSameCard, 0, 0}, {"a problem"}, {}).degraded);
  EXPECT_TRUE(judge_pair({PairPath::kPcieSwitch, 0, 0}, {}, {}).peer_access);
  for (PairPath path :
       {PairPath::kHostBridge, PairPath::kNumaNode, PairPath::kSystem, PairPath::kUnknown}) {
    const PairVerdict v = judge_pair({path, 0, 0}, {}, {});
    EXPECT_FALSE(v.peer_access) << path_name(path);
    EXPECT_FALSE(v.reason.empty()) << path_name(path);
  }
}

TEST(CardMonitorTest, WithoutADriverItSaysSo) {
  const auto monitor = CardMonitor::open();
  if (monitor) GTEST_SKIP() << "this machine has an NVIDIA driver";
  EXPECT_GT(monitor.error().detail.size(), 20u);
}

}  // namespace
}  // namespace tandem::cuda
