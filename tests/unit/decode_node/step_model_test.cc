#include "decode_node/step_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "common/node/packing.h"
#include "decode_node/step_budget.h"

namespace tandem::decode {
namespace {

// A card: 4 ms for its weights, 0.1 ms a sequence, 15 us a prompt row and more in long contexts.
struct Machine {
  double base = 0.004, sequence = 0.0001, row = 0.000015, context = 4e-9;
  double slowdown = 1;
  double spread = 0.03;
  std::mt19937_64 rng{11};

  double step(uint32_t decoding, uint32_t rows, uint32_t start = 0) {
    std::lognormal_distribution<double> noise(0, spread);
    return slowdown * (base + sequence * decoding + rows * (row + context * start)) * noise(rng);
  }
};

TEST(StepModel, TellsThePartsApartWhenEveryStepHoldsAllOfThem) {
  Machine machine;
  StepModel model;
  std::uniform_int_distribution<uint32_t> decoding(1, 64), rows(1, 32);
  for (int i = 0; i < 600; ++i) {
    const uint32_t n = decoding(machine.rng), p = 16 * rows(machine.rng);
    model.add({n, p, 0}, machine.step(n, p));
  }
  EXPECT_NEAR(model.decode_seconds(0), 0.004, 0.0015);
  EXPECT_NEAR(model.decode_seconds(64), 0.0104, 0.0015);
  EXPECT_NEAR(model.seconds_per_prompt_row(0), 15e-6, 2e-6);
}

TEST(StepModel, KnowsNothingBeforeItHasSeenAnything) {
  StepModel model;
  EXPECT_EQ(model.decode_seconds(8), 0);
  EXPECT_EQ(model.seconds_per_prompt_row(0), 0);
  model.add({.decoding = 8}, 0.005);
  EXPECT_EQ(model.seconds_per_prompt_row(0), 0);
  EXPECT_NEAR(model.decode_seconds(8), 0.005, 0.0005);
  model.add({.decoding = 8}, -1);  // a clock that went back
  EXPECT_NEAR(model.decode_seconds(8), 0.005, 0.0005);
}

TEST(StepModel, RemembersWhatPromptsCostThroughALongTimeWithoutAny) {
  Machine machine;
  StepModel model;
  for (uint32_t i = 0; i < 300; ++i) {
    const uint32_t rows = 16 * (1 + i % 20);
    model.add({8, rows, 0}, machine.step(8, rows));
  }
  for (uint32_t i = 0; i < 20000; ++i) model.add({8 + i % 3, 0, 0}, machine.step(8 + i % 3, 0));
  EXPECT_NEAR(model.seconds_per_prompt_row(0), 15e-6, 4e-6);
  for (int i = 0; i < 30; ++i) model.add({8, 256, 0}, machine.step(8, 256));
  EXPECT_NEAR(model.seconds_per_prompt_row(0), 15e-6, 4e-6);
}

// The loop of DecodeScheduler: a step's prompt rows follow from what was learnt of earlier ones.
struct Loop {
  explicit Loop(double limit_seconds)
      : limit(limit_seconds), budget(Duration(static_cast<Duration::rep>(limit_seconds * 1e9))) {}

  uint32_t step(Machine& machine, uint32_t decoding, uint32_t start = 0) {
    const double per_row = model.seconds_per_prompt_row(start);
    const uint32_t rows = node::rows_within(budget.for_prompts(model.decode_seconds(decoding)),
                                            per_row > 0 ? 1 / per_row : 0, 2048);
    const double took = machine.step(decoding, rows, start);
    late += took > limit ? 1 : 0;
    ++steps;
    prompt_rows += rows;
    seconds += took;
    model.add({decoding, rows, double{1} * rows * start}, took);
    budget.took(Duration(static_cast<Duration::rep>(took * 1e9)));
    return rows;
  }
  void forget() { late = steps = 0, prompt_rows = 0, seconds = 0; }

  double limit;
  StepBudget budget;
  StepModel model;
  int late = 0, steps = 0;
  double prompt_rows = 0, seconds = 0;
};

TEST(StepControl, NinetyNineStepsInAHundredKeepTheBudgetAndPromptsGetTheRest) {
  Machine machine;
  Loop loop(0.020);
  std::uniform_int_distribution<uint32_t> change(0, 99), sequences(1, 64);
  uint32_t decoding = 8, start = 0;
  double most = 0;  // rows that a machine known beforehand, without noise, could have been given
  for (int i = 0; i < 30000; ++i) {
    if (change(machine.rng) == 0) decoding = sequences(machine.rng);
    start = change(machine.rng) < 2 ? 0 : std::min(start + 512, 16384U);
    if (i == 2000) loop.forget();
    const double left = loop.limit - machine.base - machine.sequence * decoding;
    if (i >= 2000) most += left / (machine.row + machine.context * start);
    loop.step(machine, decoding, start);
  }
  EXPECT_LT(loop.late, loop.steps * 15 / 1000) << loop.late << " of " << loop.steps;
  EXPECT_GT(loop.prompt_rows, 0.8 * most);
}

// Prompts without a pause while the number that decode falls: what decoding took before must not
// keep them out for ever, although no step without prompts ever tells what it takes now.
TEST(StepControl, PromptsGetTheRoomThatEndedAnswersLeave) {
  Machine machine;
  machine.sequence = 0.0004;  // 64 sequences alone exceed the budget
  Loop loop(0.025);
  for (int i = 0; i < 50; ++i) loop.step(machine, 8);
  for (int i = 0; i < 400; ++i) loop.model.add({.decoding = 64}, machine.step(64, 0));
  EXPECT_EQ(loop.step(machine, 64), 16U);
  for (int i = 0; i < 300; ++i) loop.step(machine, 2);
  // 25 ms - 4.8 ms of decoding, at 15 us a row: 1346 rows, less what noise is given.
  EXPECT_GT(loop.step(machine, 2), 900U);
  loop.forget();
  for (int i = 0; i < 3000; ++i) loop.step(machine, 2);
  EXPECT_LT(loop.late, 45);
}

TEST(StepControl, FollowsAMachineThatTurnsSlow) {
  Machine machine;
  Loop loop(0.020);
  for (int i = 0; i < 2000; ++i) loop.step(machine, 8);
  machine.slowdown = 2;  // its clocks are held down
  for (int i = 0; i < 60; ++i) loop.step(machine, 8);
  loop.forget();
  for (int i = 0; i < 2000; ++i) loop.step(machine, 8);
  EXPECT_LT(loop.late, 30);
}

}  // namespace
}  // namespace tandem::decode
