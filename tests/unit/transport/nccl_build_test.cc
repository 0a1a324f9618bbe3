#include "common/transport/nccl/nccl_build.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>

#include "common/transport/nccl/nccl_link.h"
#include "tests/unit/transport/fake_nccl.h"

namespace {
std::atomic<int> threads_left{INT_MAX};
}

// In place of the C library's: a system that has no thread left.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  if (threads_left-- <= 0) return EAGAIN;
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}

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
  ~NcclBuild() override {
    threads_left = INT_MAX;
    FakeNccl::hold(false);
  }
  static NcclBuilder::Plan plan(FakeId kind = FakeId::kGood) {
    return {.device = 3, .id = FakeNccl::id(kind)};
  }
  NcclBuilder::Build start() {
    auto builds = builder_.prepare(1);
    EXPECT_TRUE(builds);
    if (!builds) return {};
    const int asked = FakeNccl::asked();
    builds->front().begin(plan());
    EXPECT_TRUE(until([&] { return FakeNccl::asked() > asked; }));
    return std::move(builds->front());
  }
  const std::shared_ptr<const NcclApi> api_ = FakeNccl::api();
  NcclBuilder builder_{
      api_, {new std::byte[NcclBuilder::kGreetingBytes], std::default_delete<std::byte[]>()}};
  std::vector<std::byte> memory_{4096};
  SlotSpace slots_{memory_.data(), memory_.size()};
  const NcclShared shared_{.api = *api_,
                           .builder = builder_,
                           .slots = {"nccl", slots_, slots_, 1024, 1024},
                           .device = 3,
                           .ctas = 0,
                           .group = {1, 1024}};
};

bool ended(const NcclBuilder::Build& build) {
  const Result<bool> done = build.done();
  return !done || *done;
}

TEST_F(NcclBuild, WhatWasBuiltAndNotTakenIsEndedOnItsDeviceBeforeItsStream) {
  {
    const NcclBuilder::Build build = start();
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
      NcclBuilder::Build build = start();
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
  { const NcclBuilder::Build build = start(); }
  EXPECT_EQ(FakeNccl::made(), 0);
  FakeNccl::hold(false);
  EXPECT_TRUE(until([] { return FakeNccl::aborted() == 1; }));
  EXPECT_EQ(FakeNccl::made(), 1);
}

// One lane fails, so that the other, built meanwhile, is never asked for.
TEST_F(NcclBuild, ALinkOfWhichOneLaneFailsEndsTheOther) {
  const std::vector<ncclUniqueId> ids{FakeNccl::id(FakeId::kBad), FakeNccl::id(FakeId::kGood)};
  {
    const auto link = NcclLink::create(shared_, true, ids, nullptr);
    ASSERT_TRUE(link);
    ASSERT_TRUE(until([] { return FakeNccl::made() == 1; }));
    std::this_thread::sleep_for(milliseconds(20));  // the build ends soon after; either way will do
    ASSERT_TRUE(until([&] { return !(*link)->ready(); }));
  }
  EXPECT_TRUE(until([] { return FakeNccl::aborted() == 1; }));
}

// Peers that never come hold a thread each; established connections count for nothing.
TEST_F(NcclBuild, RefusesMoreThanItsShareOfThreadsUntilSomeHaveEnded) {
  std::vector<NcclBuilder::Build> builds;
  for (size_t i = 0; i < NcclBuilder::kMostUnderWay; ++i) builds.push_back(start());
  for (const auto& build : builds) ASSERT_TRUE(until([&] { return ended(build); }));
  FakeNccl::hold(true);
  for (size_t i = 0; i < NcclBuilder::kMostUnderWay; ++i) {
    const NcclBuilder::Build given_up = start();  // its thread stays
  }
  auto refused = builder_.prepare(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().detail.find("32 communicators"), std::string::npos);
  // A link of several lanes is refused as a whole.
  const std::vector<ncclUniqueId> ids{FakeNccl::id(FakeId::kGood), FakeNccl::id(FakeId::kGood)};
  const auto link = NcclLink::create(shared_, false, ids, nullptr);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, ErrorCode::kResourceExhausted);
  FakeNccl::hold(false);
  std::vector<NcclBuilder::Build> again;
  EXPECT_TRUE(until([&] {
    if (auto prepared = builder_.prepare(1); again.empty() && prepared)
      again = std::move(*prepared);
    return !again.empty();
  }));
}

TEST_F(NcclBuild, ASystemWithoutThreadsIsAnError) {
  threads_left = 0;
  const auto refused = builder_.prepare(1);
  threads_left = INT_MAX;
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().detail.find("cannot start a thread"), std::string::npos);
  const NcclBuilder::Build build = start();
  EXPECT_TRUE(until([&] { return ended(build); }));
}

// A peer whose communicators have one rank only would wait for the other for good.
TEST_F(NcclBuild, AllCommunicatorsOfAConnectionAreBegunOrNone) {
  const std::vector<ncclUniqueId> ids{FakeNccl::id(FakeId::kGood), FakeNccl::id(FakeId::kGood)};
  threads_left = 1;
  const auto link = NcclLink::create(shared_, false, ids, nullptr);
  threads_left = INT_MAX;
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, ErrorCode::kResourceExhausted);
  FakeNccl::hold(true);
  std::vector<NcclBuilder::Build> builds;
  for (size_t i = 0; i + 1 < NcclBuilder::kMostUnderWay; ++i) builds.push_back(start());
  EXPECT_FALSE(builder_.prepare(2));
  EXPECT_TRUE(builder_.prepare(1));
  FakeNccl::hold(false);
  EXPECT_TRUE(until([] { return FakeNccl::made() + 1 == NcclBuilder::kMostUnderWay; }));
}

// What a sender prepared for a hello that nobody answered ends without having asked NCCL.
TEST_F(NcclBuild, WhatWasPreparedAndNotBegunAsksNothingOfNccl) {
  { const auto builds = builder_.prepare(2); }
  const NcclBuilder::Build build = start();
  EXPECT_TRUE(until([&] { return ended(build); }));
  EXPECT_EQ(FakeNccl::made(), 1);
}

TEST_F(NcclBuild, ALinkEndsItsLanesWithoutThreadsToo) {
  const std::vector<ncclUniqueId> ids{FakeNccl::id(FakeId::kGood), FakeNccl::id(FakeId::kGood)};
  auto link = NcclLink::create(shared_, true, ids, nullptr);
  ASSERT_TRUE(link);
  ASSERT_TRUE(until([&] { return (*link)->ready().value_or(false); }));
  threads_left = 0;
  link->reset();
  threads_left = INT_MAX;
  EXPECT_EQ(FakeNccl::aborted(), 2);
}

// Taking memory or giving it back would hold up the kernels of those who are being served.
TEST_F(NcclBuild, TakesNoMemoryOfTheDevice) {
  const int before = FakeCuda::memory_calls();
  {
    const NcclBuilder::Build build = start();
    ASSERT_TRUE(until([&] { return ended(build); }));
  }
  EXPECT_EQ(FakeNccl::aborted(), 1);
  EXPECT_EQ(FakeCuda::memory_calls(), before);
}

// Without looking, the message under way would be waited for until its time is over.
TEST_F(NcclBuild, ACommunicatorThatFailsEndsItsConnectionInItsOwnWords) {
  const std::vector<ncclUniqueId> ids{FakeNccl::id(FakeId::kGood)};
  auto link = NcclLink::create(shared_, true, ids, nullptr);
  ASSERT_TRUE(link);
  ASSERT_TRUE(until([&] { return (*link)->ready().value_or(false); }));
  std::vector<Piece> pieces{{memory_.data(), nullptr, 64}};
  const auto staged = (*link)->stage(pieces);
  ASSERT_TRUE(staged && *staged);
  ASSERT_TRUE((*link)->launch((*staged)->slot));
  FakeCuda::hold_events();
  EXPECT_TRUE((*link)->ready().value_or(false));  // under way
  FakeNccl::fail(ncclRemoteError);
  const auto failed = (*link)->ready();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kTransport);
  EXPECT_NE(failed.error().detail.find("the communicator failed: refused by the fake"),
            std::string::npos)
      << failed.error().detail;
}

}  // namespace
}  // namespace tandem::transport::testing
