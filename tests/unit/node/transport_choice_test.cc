#include <gtest/gtest.h>

#include "common/node/node_transport.h"

namespace tandem::node {
namespace {

TEST(TransportChoice, AutoGoesByWherePagesLieAndSaysWhy) {
  const ChosenTransport host = choose_transport({}, {});
  EXPECT_EQ(host.kind, TransportChoice::kUcx);
  EXPECT_EQ(host.reason, "KV lies in host memory");
  const ChosenTransport card = choose_transport({}, {.device = 1});
  EXPECT_EQ(card.kind, TransportChoice::kCudaIpc);
  EXPECT_NE(card.reason.find("cuda:1"), std::string::npos);
}

// nixl 1097: what is slower than it should be is avoided and named, never taken in silence.
TEST(TransportChoice, AutoAvoidsACardWhoseLinksAreNotSound) {
  const ChosenTransport chosen =
      choose_transport({}, {.device = 0, .link_problems = {"link 3 is down", "link 5 replays"}});
  EXPECT_EQ(chosen.kind, TransportChoice::kUcx);
  EXPECT_NE(chosen.reason.find("link 3 is down; link 5 replays"), std::string::npos);
}

TEST(TransportChoice, WhatIsConfiguredIsTakenAsItIs) {
  for (const TransportChoice kind :
       {TransportChoice::kUcx, TransportChoice::kCudaIpc, TransportChoice::kNccl}) {
    EXPECT_EQ(
        choose_transport({.kind = kind, .ucx_tls = {}}, {.device = 0, .link_problems = {"x"}}).kind,
        kind);
  }
}

}  // namespace
}  // namespace tandem::node
