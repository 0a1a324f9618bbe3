#include "common/transport/nccl/nccl_build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/transport/nccl/nccl_link.h"
#include "tests/unit/transport/fake_nccl.h"

namespace tandem::transport::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

template <typename Condition>
[[nodiscard]] bool until(const Condition& done) {
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + seconds(20);
  while (!done() && clock.now() < give_up) std::this_thread::sleep_for(milliseconds(1));
  return done();
}

class NcclBuild : public ::testing::Test {
 protected:
  NcclBuild() {
    FakeCuda::reset();
    FakeNccl::reset();
  }
  static NcclBuilder::Plan plan(FakeId kind = FakeId::kGood) {
    return {.device = 3, .id = FakeNccl::id(kind)};
  }
  const std::shared_ptr<const NcclApi> api_ = FakeNccl::api();
  NcclBuilder builder_{api_};
  SlotSpace slots_;
  const NcclShared shared_{.api = *api_,
                           .builder = builder_,
                           .send_slots = slots_,
                           .receive_slots = slots_,
                           .device = 3,
                           .message_bytes = 1,
                           .ctas = 0,
                           .group = {1, 1}};
};

bool ended(const NcclBuilder::Build& build) {
  const Result<bool> done = build.done();
  return !done || *done;
}

TEST_F(NcclBuild, WhatWasBuiltAndNotTakenIsEndedOnItsDeviceBeforeItsStream) {
  {
    const NcclBuilder::Build build = builder_.start(plan());
    ASSERT_TRUE(until([&] { return ended(build); }));
    EXPECT_EQ(FakeNccl::aborted(), 0);
  }
  EXPECT_EQ(FakeNccl::made(), 1);
  EXPECT_THAT(FakeCuda::notes(), ElementsAre("aborted on device 3", "stream ended"));
  EXPECT_EQ(FakeCuda::device(), 0);
}

TEST_F(NcclBuild, WhatWasTakenEndsOnceWithItsOwner) {
  {
    NcclBuilder::Built taken;
    {
      NcclBuilder::Build build = builder_.start(plan());
      ASSERT_TRUE(until([&] { return ended(build); }));
      taken = build.take();
    }
    EXPECT_EQ(FakeNccl::aborted(), 0);
    EXPECT_NE(taken.comm(), nullptr);
    taken = {};
    EXPECT_THAT(FakeCuda::notes(), ElementsAre("aborted on device 0", "stream ended"));
  }
  EXPECT_EQ(FakeNccl::aborted(), 1);
}

TEST_F(NcclBuild, WhatNobodyWantsAnyMoreIsEndedOnceItIsBuilt) {
  FakeNccl::hold(true);
  { const NcclBuilder::Build build = builder_.start(plan()); }
  EXPECT_EQ(FakeNccl::made(), 0);
  FakeNccl::hold(false);
  EXPECT_TRUE(until([] { return FakeNccl::aborted() == 1; }));
  EXPECT_EQ(FakeNccl::made(), 1);
}

// One lane fails, so that the other, built meanwhile, is never asked for.
TEST_F(NcclBuild, ALinkOfWhichOneLaneFailsEndsTheOther) {
  const std::vector<ncclUniqueId> ids{FakeNccl::id(FakeId::kBad), FakeNccl::id(FakeId::kGood)};
  {
    NcclLink link(shared_, true, ids, nullptr);
    ASSERT_TRUE(until([] { return FakeNccl::made() == 1; }));
    std::this_thread::sleep_for(milliseconds(20));  // the build ends soon after; either way will do
    ASSERT_TRUE(until([&] { return !link.ready(); }));
  }
  EXPECT_TRUE(until([] { return FakeNccl::aborted() == 1; }));
}

}  // namespace
}  // namespace tandem::transport::testing
