#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/node/node_transport.h"

namespace tandem::node {
namespace {

using cuda::CardHealth;
using cuda::CardPair;
using cuda::PairPath;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

ClusterConfig cluster(const std::vector<std::string>& prefill,
                      const std::vector<std::string>& decode) {
  ClusterConfig config;
  config.prefill.clear();
  config.decode.clear();
  for (const std::string& device : prefill) {
    PrefillNodeSettings node;
    node.name = "prefill-" + std::to_string(config.prefill.size());
    node.device = device;
    config.prefill.push_back(node);
  }
  for (const std::string& device : decode) {
    DecodeNodeSettings node;
    node.name = "decode-" + std::to_string(config.decode.size());
    node.device = device;
    config.decode.push_back(node);
  }
  return config;
}

CardHealth card(uint32_t active_links) {
  CardHealth health;
  health.nvlinks.resize(18);
  for (uint32_t i = 0; i < active_links; ++i) health.nvlinks[i].active = true;
  return health;
}

// A machine whose cards are joined by 18 NVLinks, of which `active` work on card 1.
CardReadings machine(uint32_t active) {
  return {.card = [active](uint32_t index) -> Result<CardHealth> {
            return card(index == 1 ? active : 18);
          },
          .pair = [active](uint32_t a, uint32_t b) -> Result<CardPair> {
            const bool worn = a == 1 || b == 1;
            return CardPair{PairPath::kNvLink, worn ? active : 18, 18};
          }};
}

CardReadings path(PairPath way) {
  return {.card = [](uint32_t) -> Result<CardHealth> { return CardHealth{}; },
          .pair = [way](uint32_t, uint32_t) -> Result<CardPair> {
            return CardPair{way, 0, 0};
          }};
}

CardReadings nothing() {
  return {.card = [](uint32_t) -> Result<CardHealth> {
            return fail(ErrorCode::kUnavailable, "no NVML");
          },
          .pair = [](uint32_t, uint32_t) -> Result<CardPair> {
            return fail(ErrorCode::kUnavailable, "no NVML");
          }};
}

// What every node of the file chooses; all must choose alike.
ChosenTransport chosen(const ClusterConfig& config, const CardReadings& readings) {
  std::vector<ChosenTransport> all;
  for (const NodeSettings& node : config.prefill)
    all.push_back(choose_transport(node.transport, transport_place(config, node, readings)));
  for (const NodeSettings& node : config.decode)
    all.push_back(choose_transport(node.transport, transport_place(config, node, readings)));
  for (const ChosenTransport& one : all) EXPECT_EQ(one.kind, all.front().kind) << one.text;
  return all.front();
}

TEST(CardPairs, AreThoseOfPrefillAndDecodeNodesEachOnce) {
  EXPECT_THAT(card_pairs(cluster({"cuda:0", "cuda:2"}, {"cuda:2", "cuda:0", "cpu"})),
              ElementsAre(Pair(0, 0), Pair(0, 2), Pair(2, 2)));
  EXPECT_THAT(card_pairs(cluster({"cuda:0", "cuda:1"}, {})), IsEmpty());
}

TEST(TransportChoice, CardsThatReachEachOtherUseTheDirectWay) {
  const ChosenTransport two = chosen(cluster({"cuda:0"}, {"cuda:1"}), machine(18));
  EXPECT_EQ(two.kind, TransportChoice::kCudaIpc);
  EXPECT_EQ(two.reason, TransportReason::kDirect);
  EXPECT_EQ(chosen(cluster({"cuda:0"}, {"cuda:1"}), path(PairPath::kPcieSwitch)).kind,
            TransportChoice::kCudaIpc);
}

// One card needs no link at all, and nothing is asked about it.
TEST(TransportChoice, OneCardForBothRolesAsksNobody) {
  const ChosenTransport one = chosen(cluster({"cuda:0"}, {"cuda:0"}), nothing());
  EXPECT_EQ(one.kind, TransportChoice::kCudaIpc);
  EXPECT_EQ(one.reason, TransportReason::kDirect);
}

// nixl 1097: what is slower than it should be is named, never taken in silence.
TEST(TransportChoice, ADegradedLinkIsNamedAndUsedWhileItIsTheFastest) {
  const ChosenTransport c = chosen(cluster({"cuda:0"}, {"cuda:1"}), machine(12));
  EXPECT_EQ(c.kind, TransportChoice::kCudaIpc);
  EXPECT_EQ(c.reason, TransportReason::kDegradedLink);
  EXPECT_THAT(c.text, AllOf(HasSubstr("cuda:0 - cuda:1"), HasSubstr("12 of 18 NVLinks are up")));
}

TEST(TransportChoice, ALinkWithLittleLeftIsAvoidedByEveryNodeOfTheFile) {
  const ChosenTransport c = chosen(cluster({"cuda:0", "cuda:2"}, {"cuda:1", "cuda:3"}), machine(3));
  EXPECT_EQ(c.kind, TransportChoice::kUcx);
  EXPECT_EQ(c.reason, TransportReason::kLinkAvoided);
  EXPECT_THAT(c.text, AllOf(HasSubstr("cuda:0 - cuda:1: 3 of 18 NVLinks are up"),
                            HasSubstr("cuda:1 - cuda:2"), ::testing::Not(HasSubstr("cuda:3"))));
}

TEST(TransportChoice, CardsWithoutADirectWayGoThroughTheHost) {
  for (const PairPath way :
       {PairPath::kHostBridge, PairPath::kNumaNode, PairPath::kSystem, PairPath::kUnknown}) {
    const ChosenTransport c = chosen(cluster({"cuda:0"}, {"cuda:1"}), path(way));
    EXPECT_EQ(c.kind, TransportChoice::kUcx);
    EXPECT_EQ(c.reason, TransportReason::kLinkAvoided);
    EXPECT_THAT(c.text, HasSubstr("going through the host"));
  }
  const ChosenTransport unread = chosen(cluster({"cuda:0"}, {"cuda:1"}), nothing());
  EXPECT_EQ(unread.kind, TransportChoice::kUcx);
  EXPECT_THAT(unread.text, HasSubstr("no NVML"));
}

TEST(TransportChoice, ANodeInHostMemoryDecidesForTheWholeFile) {
  EXPECT_EQ(chosen(cluster({"cpu"}, {"cpu"}), nothing()).reason, TransportReason::kHostMemory);
  const ClusterConfig mixed = cluster({"cuda:0"}, {"cuda:1", "cpu"});
  EXPECT_EQ(chosen(mixed, machine(18)).kind, TransportChoice::kUcx);
  const ChosenTransport c =
      choose_transport({}, transport_place(mixed, mixed.prefill[0], machine(18)));
  EXPECT_EQ(c.reason, TransportReason::kPeerHostMemory);
  EXPECT_THAT(c.text, HasSubstr("decode-1"));
}

TEST(TransportChoice, PeersOfOtherFilesAreReachedOverTheNetwork) {
  const ChosenTransport c = chosen(cluster({}, {"cuda:0", "cuda:1"}), machine(18));
  EXPECT_EQ(c.kind, TransportChoice::kUcx);
  EXPECT_EQ(c.reason, TransportReason::kPeersElsewhere);
}

// Configured ways are taken, also when they are no good; that is told all the same.
TEST(TransportChoice, ADegradedLinkOfAConfiguredWayIsToldToo) {
  const auto configured = [](TransportChoice kind, const CardReadings& readings) {
    ClusterConfig config = cluster({"cuda:0"}, {"cuda:1"});
    config.prefill[0].transport.kind = config.decode[0].transport.kind = kind;
    const ChosenTransport c = chosen(config, readings);
    EXPECT_EQ(c.kind, kind);
    EXPECT_EQ(c.reason, TransportReason::kConfigured);
    return c.warning;
  };
  for (const TransportChoice kind : {TransportChoice::kCudaIpc, TransportChoice::kNccl}) {
    EXPECT_EQ(configured(kind, machine(18)), "");
    EXPECT_THAT(configured(kind, machine(12)),
                AllOf(HasSubstr("cuda:0 - cuda:1"), HasSubstr("12 of 18 NVLinks are up")));
    for (const CardReadings& bad : {machine(3), path(PairPath::kSystem), nothing()}) {
      EXPECT_THAT(configured(kind, bad),
                  AllOf(HasSubstr("cuda:0 - cuda:1"), HasSubstr("auto would go through the host")));
    }
  }
  EXPECT_EQ(configured(TransportChoice::kUcx, machine(3)), "") << "it uses no links";
}

TEST(TransportChoice, WhatAutoMakesOfBadLinksIsAWarning) {
  EXPECT_EQ(chosen(cluster({"cuda:0"}, {"cuda:1"}), machine(18)).warning, "");
  for (const uint32_t active : {12U, 3U}) {
    const ChosenTransport c = chosen(cluster({"cuda:0"}, {"cuda:1"}), machine(active));
    EXPECT_EQ(c.warning, c.text);
  }
}

TEST(TransportChoice, WhatIsConfiguredIsTakenAsItIs) {
  for (const TransportChoice kind :
       {TransportChoice::kUcx, TransportChoice::kCudaIpc, TransportChoice::kNccl}) {
    const ChosenTransport c = choose_transport({.kind = kind, .ucx_tls = {}}, {.device = 0U});
    EXPECT_EQ(c.kind, kind);
    EXPECT_EQ(c.reason, TransportReason::kConfigured);
  }
}

TEST(LibraryVersions, AreThoseThatTwoProcessesMustShare) {
  const cuda::CudaVersions cuda{.driver = 13000, .runtime = 12090};
  EXPECT_THAT(library_versions("nccl", "nccl 2.28.9: peer GPU", cuda),
              ElementsAre(Pair("cuda_driver", "13.0"), Pair("cuda_runtime", "12.9"),
                          Pair("nccl", "2.28.9")));
  EXPECT_THAT(library_versions("nccl", "nccl 2.28.9: not connected yet", {}),
              ElementsAre(Pair("nccl", "2.28.9")));
  EXPECT_THAT(library_versions("ucx", "ucx 1.13.1: shared memory, tcp", {}),
              ElementsAre(Pair("ucx", "1.13.1")));
  EXPECT_THAT(library_versions("cuda_ipc", "cuda_ipc 13.0: peer GPU, NVLink", {}), IsEmpty());
  EXPECT_THAT(library_versions("inproc", "inproc: memory of this process", {}), IsEmpty());
  for (const char* strange : {"", "ucx", "ucx: x", "ucx 1", "ucx : x", "other 1.2: x"}) {
    EXPECT_THAT(library_versions("ucx", strange, {}), IsEmpty()) << strange;
  }
}

TEST(TransportKind, IsRefusedWhereItCanMoveNothing) {
  const DeviceChoice host, card{.cuda = true, .index = 1};
  for (const TransportChoice kind : {TransportChoice::kAuto, TransportChoice::kUcx}) {
    EXPECT_TRUE(check_kind(kind, host));
    EXPECT_TRUE(check_kind(kind, card));
  }
  for (const TransportChoice kind : {TransportChoice::kCudaIpc, TransportChoice::kNccl}) {
    EXPECT_TRUE(check_kind(kind, card));
    EXPECT_THAT(check_kind(kind, host).error().detail,
                HasSubstr("this node's are on the host; use"));
    EXPECT_EQ(check_kind(kind, host).error().param, "transport.kind");
  }
  EXPECT_THAT(check_kind(TransportChoice::kInproc, host).error().detail, HasSubstr("separate"));
  EXPECT_FALSE(check_kind(TransportChoice::kInproc, card));
}

TEST(TransportChoice, EveryReasonHasALabelOfItsOwn) {
  std::set<std::string_view> labels;
  for (const TransportReason reason :
       {TransportReason::kConfigured, TransportReason::kHostMemory,
        TransportReason::kPeerHostMemory, TransportReason::kPeersElsewhere,
        TransportReason::kLinkAvoided, TransportReason::kDegradedLink, TransportReason::kDirect}) {
    labels.insert(label(reason));
  }
  EXPECT_EQ(labels.size(), 7U);
}

// By hand from what communicators were measured to take.
TEST(TransportMemory, CountsMessagesAndCommunicatorsOfEveryPeer) {
  const DeviceChoice card{.cuda = true, .index = 0};
  const auto nccl = [&](const TransportPeers& peers) {
    return transport_memory(TransportChoice::kNccl, card, false, peers);
  };
  const auto prefill = nccl({.receivers = 3});
  ASSERT_EQ(prefill.size(), 1U);
  EXPECT_EQ(prefill[0].name, "transport nccl to 3 peers");
  EXPECT_EQ(prefill[0].bytes, uint64_t{480 + 440 + 3 * 530} << 20);
  EXPECT_THAT(prefill[0].remedy, HasSubstr("cuda_ipc"));
  const auto decode = nccl({.senders = 1});
  ASSERT_EQ(decode.size(), 1U);
  EXPECT_EQ(decode[0].name, "transport nccl from 1 peer");
  EXPECT_EQ(decode[0].bytes, uint64_t{480 + 440 + 1040} << 20);
}

TEST(TransportMemory, IsNothingWhereNoneOfTheCardIsTaken) {
  const DeviceChoice card{.cuda = true, .index = 0};
  const TransportPeers peers{.receivers = 2};
  EXPECT_THAT(transport_memory(TransportChoice::kCudaIpc, card, true, peers), IsEmpty());
  EXPECT_THAT(transport_memory(TransportChoice::kUcx, card, false, peers), IsEmpty());
  EXPECT_THAT(transport_memory(TransportChoice::kNccl, {}, false, peers), IsEmpty());
  const auto ucx = transport_memory(TransportChoice::kUcx, card, true, peers);
  ASSERT_EQ(ucx.size(), 1U);
  EXPECT_EQ(ucx[0].bytes, uint64_t{320} << 20);
}

// The UCX of these tests knows no CUDA, whatever the words ask for.
TEST(TransportMemory, UcxIsAskedWhetherItKnowsCuda) {
  const DeviceChoice card{.cuda = true, .index = 0};
  TransportSettings settings;
  EXPECT_FALSE(ucx_on_card(settings, card));
  for (const char* words : {"^cuda", "tcp,self,cuda_copy,cuda_ipc"}) {
    settings.ucx_tls = words;
    EXPECT_FALSE(ucx_on_card(settings, card)) << words;
  }
}

}  // namespace
}  // namespace tandem::node
