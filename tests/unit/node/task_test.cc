#include "common/node/task.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace tandem::node {
namespace {

constexpr TaskLimits kLimits{.vocab = 100, .max_context = 64};

control::Task good_task() {
  control::Task m;
  m.set_request_id(7);
  for (int t : {1, 2, 3}) m.add_tokens(t);
  m.set_prompt_tokens(3);
  m.set_max_new_tokens(5);
  m.add_stop_tokens(99);
  auto& s = *m.mutable_sampling();
  s.set_temperature(0);
  s.set_top_p(1);
  s.set_repetition_penalty(1);
  s.set_logprobs(-1);
  m.set_prompt_logprobs(-1);
  return m;
}

TEST(ParseTask, TakesEveryField) {
  auto m = good_task();
  m.mutable_sampling()->set_seed(11);
  m.mutable_sampling()->set_top_k(4);
  auto* bias = m.mutable_sampling()->add_logit_bias();
  bias->set_token(5);
  bias->set_bias(-1.5F);
  m.set_min_new_tokens(2);
  const auto task = parse_task(m, kLimits);
  ASSERT_TRUE(task) << task.error().to_string();
  EXPECT_EQ(task->id, RequestId{7});
  EXPECT_EQ(task->tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(task->new_tokens_left, 5U);
  EXPECT_EQ(task->min_new_tokens, 2U);
  EXPECT_EQ(task->stop_tokens, (std::vector<TokenId>{99}));
  EXPECT_EQ(task->sampling.seed, 11U);
  EXPECT_EQ(task->sampling.top_k, 4);
  ASSERT_EQ(task->sampling.logit_bias.size(), 1U);
  EXPECT_FALSE(task->scores_prompt());
}

struct BadCase {
  const char* field;
  std::function<void(control::Task&)> spoil;
};

TEST(ParseTask, RefusesWhatAPeerMayNotSendAndNamesTheField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const BadCase cases[] = {
      {"request_id", [](auto& m) { m.set_request_id(0); }},
      {"tokens", [](auto& m) { m.clear_tokens(); }},
      {"tokens", [](auto& m) { m.set_tokens(1, -1); }},
      {"tokens", [](auto& m) { m.set_tokens(1, 100); }},
      {"tokens",
       [](auto& m) {
         while (m.tokens_size() < 65) m.add_tokens(1);
       }},
      {"prompt_tokens", [](auto& m) { m.set_prompt_tokens(0); }},
      {"prompt_tokens", [](auto& m) { m.set_prompt_tokens(4); }},
      {"stop_tokens", [](auto& m) { m.add_stop_tokens(100); }},
      {"sampling.temperature", [&](auto& m) { m.mutable_sampling()->set_temperature(nan); }},
      {"sampling.temperature", [](auto& m) { m.mutable_sampling()->set_temperature(-1); }},
      {"sampling.top_p", [](auto& m) { m.mutable_sampling()->set_top_p(1.1F); }},
      {"sampling.min_p", [&](auto& m) { m.mutable_sampling()->set_min_p(nan); }},
      {"sampling.repetition_penalty",
       [](auto& m) { m.mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.logit_bias",
       [](auto& m) { m.mutable_sampling()->add_logit_bias()->set_token(100); }},
  };
  for (const auto& c : cases) {
    auto m = good_task();
    c.spoil(m);
    const auto task = parse_task(m, kLimits);
    ASSERT_FALSE(task) << c.field;
    EXPECT_EQ(task.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(task.error().param, c.field);
  }
}

TEST(ParseTask, AppendingTheAnswerNeverMovesTheTokens) {
  auto m = good_task();
  m.set_max_new_tokens(4'000'000'000U);
  auto task = parse_task(m, kLimits);
  ASSERT_TRUE(task);
  const TokenId* first = task->tokens.data();
  while (append_drawn(*task, 1, kLimits.max_context).finish == control::FINISH_NONE) {
  }
  EXPECT_EQ(task->tokens.size(), kLimits.max_context);
  EXPECT_EQ(task->tokens.data(), first);
}

TEST(AppendDrawn, StopTokenEndsTheAnswerAndIsNotKept) {
  auto task = parse_task(good_task(), kLimits);
  const auto drawn = append_drawn(*task, 99, 64);
  EXPECT_FALSE(drawn.kept);
  EXPECT_EQ(drawn.finish, control::FINISH_STOP);
  EXPECT_EQ(task->tokens.size(), 3U);
}

TEST(AppendDrawn, StopTokensDoNotCountBeforeTheMinimum) {
  auto m = good_task();
  m.set_min_new_tokens(2);
  auto task = parse_task(m, kLimits);
  EXPECT_EQ(append_drawn(*task, 99, 64).finish, control::FINISH_NONE);
  EXPECT_EQ(append_drawn(*task, 99, 64).finish, control::FINISH_NONE);
  EXPECT_EQ(append_drawn(*task, 99, 64).finish, control::FINISH_STOP);
  EXPECT_EQ(task->answer_tokens(), 2U);
}

TEST(AppendDrawn, LengthEndsTheAnswerWithItsLastToken) {
  auto m = good_task();
  m.set_max_new_tokens(2);
  auto task = parse_task(m, kLimits);
  EXPECT_EQ(append_drawn(*task, 5, 64).finish, control::FINISH_NONE);
  const auto last = append_drawn(*task, 6, 64);
  EXPECT_TRUE(last.kept);
  EXPECT_EQ(last.finish, control::FINISH_LENGTH);
}

TEST(AppendDrawn, FullContextEndsTheAnswer) {
  auto task = parse_task(good_task(), kLimits);
  EXPECT_EQ(append_drawn(*task, 5, 5).finish, control::FINISH_NONE);
  EXPECT_EQ(append_drawn(*task, 5, 5).finish, control::FINISH_LENGTH);
}

}  // namespace
}  // namespace tandem::node
