#include "common/net/io_thread.h"

#include <gtest/gtest.h>

#include <future>

namespace tandem {
namespace {

using std::chrono::milliseconds;

TEST(IoThread, RunsPostedWorkInOrderOnItsThread) {
  IoThread io("test");
  io.start();
  std::promise<std::string> done;
  std::string seen;
  io.post([&] { seen += io.on_thread() ? "a" : "x"; });
  io.post([&] { seen += "b"; });
  io.post([&] { done.set_value(seen); });
  EXPECT_EQ(done.get_future().get(), "ab");
  EXPECT_FALSE(io.on_thread());
}

TEST(IoThread, TimersRepeatOrFireOnceAndEndWithTheirOwner) {
  IoThread io("test");
  int ticks = 0;
  int cancelled = 0;
  std::promise<void> done;
  std::unique_ptr<IoThread::Timer> repeating = io.every(milliseconds(1), [&] {
    if (++ticks == 5) {
      repeating.reset();  // from within itself
      io.post([&] { done.set_value(); });
    }
  });
  auto once = io.after(milliseconds(1), [&] { cancelled += 100; });
  once.reset();
  io.start();
  done.get_future().get();
  io.stop();
  EXPECT_EQ(ticks, 5);
  EXPECT_EQ(cancelled, 0);
}

TEST(IoThread, StopsWithWorkQueuedAndWithoutHavingStarted) {
  IoThread never("test");
  never.post([] { FAIL(); });
  IoThread io("test");
  io.start();
  std::promise<void> blocked;
  std::promise<void> entered;
  io.post([&] {
    entered.set_value();
    blocked.get_future().get();
  });
  entered.get_future().get();
  blocked.set_value();
  io.stop();
  io.stop();
}

}  // namespace
}  // namespace tandem
