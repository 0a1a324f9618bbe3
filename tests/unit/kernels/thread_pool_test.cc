#include "common/engine/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <numeric>

namespace tandem::engine {
namespace {

TEST(ThreadPool, EveryPieceIsDoneOnceForAnyNumberOfThreads) {
  for (const uint32_t threads : {1U, 2U, 5U}) {
    auto pool = *ThreadPool::create(threads, {});
    ASSERT_EQ(pool->threads(), threads);
    for (const int64_t count : {0, 1, 3, 64, 1000})
      for (const int64_t grain : {1, 7}) {
        std::vector<std::atomic<int>> done(static_cast<size_t>(count));
        const auto body = [&](uint32_t thread, int64_t begin, int64_t end) {
          EXPECT_LT(thread, threads);
          for (int64_t i = begin; i < end; ++i) done[static_cast<size_t>(i)].fetch_add(1);
        };
        pool->split(count, grain, body);
        for (const auto& d : done) EXPECT_EQ(d.load(), 1);
        pool->stream(count, grain, body);
        for (const auto& d : done) EXPECT_EQ(d.load(), 2);
      }
  }
}

TEST(ThreadPool, ResultsOfAJobAreVisibleToTheNextOne) {
  auto pool = *ThreadPool::create(4, {});
  std::vector<int64_t> values(64,
                              0);  // plain memory: a missing barrier shows as a race or a wrong sum
  for (int64_t round = 0; round < 3000; ++round)
    pool->split(64, 1, [&](uint32_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>((i * 7 + round) % 64)] += 1;
    });
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 64 * 3000);
}

TEST(ThreadPool, SleepingWorkersWakeAndALateOneIsNotWaitedFor) {
  auto pool = *ThreadPool::create(3, {});
  std::atomic<int> pieces{0};
  for (int round = 0; round < 20; ++round) {
    // Long enough for the workers to fall asleep.
    for (int i = 0; i < 20000; ++i) std::this_thread::yield();
    pool->split(10, 1, [&](uint32_t, int64_t begin, int64_t end) {
      pieces += static_cast<int>(end - begin);
    });
  }
  EXPECT_EQ(pieces.load(), 200);
}

TEST(ThreadPool, StopsWhileWorkersSpinOrSleep) {
  for (int i = 0; i < 50; ++i) {
    auto pool = *ThreadPool::create(3, {});
    if (i % 2 == 0) pool->split(8, 1, [](uint32_t, int64_t, int64_t) {});
  }
}

TEST(ThreadPool, RefusesImpossibleSettings) {
  EXPECT_EQ(ThreadPool::create(0, {}).error().param, "threads");
  EXPECT_EQ(ThreadPool::create(2, {0}).error().param, "cpus");
  EXPECT_EQ(ThreadPool::create(2, {0, -1}).error().param, "cpus");
  EXPECT_EQ(ThreadPool::create(2, {0, 1000}).error().param, "cpus");
  // The leader's too, though it is pinned only when it comes; CPU 1000 is none of any test
  // machine's.
  const auto alone = ThreadPool::create(1, {CPU_SETSIZE - 1});
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().param, "cpus");
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  int first = 0;
  while (!CPU_ISSET(first, &set)) ++first;
  ASSERT_TRUE(ThreadPool::create(1, {first}));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&set, &after)) << "whoever makes a pool stays where it was";
}

}  // namespace
}  // namespace tandem::engine
