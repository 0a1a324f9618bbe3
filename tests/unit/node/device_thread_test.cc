#include "common/node/device_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "common/base/bounded_queue.h"

namespace tandem::node {
namespace {

using Outputs = std::vector<engine::SequenceOutput>;
constexpr auto kSoon = std::chrono::seconds(60);

StepJob job_of(uint64_t id, const std::vector<TokenId>& tokens) {
  StepJob job;
  job.id = id;
  job.sequences.emplace_back().tokens = tokens;
  return job;
}

TEST(DeviceThread, BuildsAndRunsOnOneThread) {
  SteadyClock clock;
  BoundedQueue<StepResult> results(4);
  std::thread::id built;
  std::thread::id ran;
  DeviceThread device(clock, [&](StepResult r) { ASSERT_TRUE(results.try_push(std::move(r))); });
  ASSERT_TRUE(device.start([&]() -> Result<StepFunction> {
    built = std::this_thread::get_id();
    return StepFunction([&](auto sequences, const auto&) -> Result<Outputs> {
      ran = std::this_thread::get_id();
      return Outputs(sequences.size());
    });
  }));
  const std::vector<TokenId> tokens{1};
  ASSERT_TRUE(device.submit(job_of(5, tokens)));
  const auto result = results.pop(kSoon);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->id, 5U);
  ASSERT_TRUE(result->outputs);
  EXPECT_EQ(result->outputs->size(), 1U);
  EXPECT_GE(result->finished, result->started);
  EXPECT_EQ(built, ran);
  EXPECT_NE(built, std::this_thread::get_id());
}

TEST(DeviceThread, TakesOneStepAtATime) {
  SteadyClock clock;
  BoundedQueue<StepResult> results(4);
  std::promise<void> go;
  auto wait = go.get_future().share();
  DeviceThread device(clock, [&](StepResult r) { ASSERT_TRUE(results.try_push(std::move(r))); });
  ASSERT_TRUE(device.start([&]() -> Result<StepFunction> {
    return StepFunction([&](auto, const auto&) -> Result<Outputs> {
      wait.wait();
      return Outputs{};
    });
  }));
  const std::vector<TokenId> tokens{1};
  EXPECT_TRUE(device.submit(job_of(1, tokens)));
  EXPECT_FALSE(device.submit(job_of(2, tokens)));
  go.set_value();
  ASSERT_TRUE(results.pop(kSoon));
  EXPECT_TRUE(device.submit(job_of(3, tokens)));
  EXPECT_TRUE(results.pop(kSoon));
}

TEST(DeviceThread, AnExceptionInAStepIsThatStepsError) {
  SteadyClock clock;
  BoundedQueue<StepResult> results(4);
  DeviceThread device(clock, [&](StepResult r) { ASSERT_TRUE(results.try_push(std::move(r))); });
  ASSERT_TRUE(device.start([]() -> Result<StepFunction> {
    return StepFunction(
        [](auto, const auto&) -> Result<Outputs> { throw std::runtime_error("boom"); });
  }));
  const std::vector<TokenId> tokens{1};
  ASSERT_TRUE(device.submit(job_of(1, tokens)));
  const auto result = results.pop(kSoon);
  ASSERT_TRUE(result);
  ASSERT_FALSE(result->outputs);
  EXPECT_NE(result->outputs.error().detail.find("boom"), std::string::npos);
}

TEST(DeviceThread, AFailedStartIsReportedAndNothingRuns) {
  SteadyClock clock;
  DeviceThread device(clock, [](StepResult) { FAIL(); });
  const auto status = device.start([]() -> Result<StepFunction> {
    return fail(ErrorCode::kCorruptData, "weights are cut off");
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorruptData);
  device.stop();
  const std::vector<TokenId> tokens{1};
  EXPECT_FALSE(device.submit(job_of(1, tokens)));
}

}  // namespace
}  // namespace tandem::node
