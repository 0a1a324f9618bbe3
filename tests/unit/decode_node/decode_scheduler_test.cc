#include "decode_node/decode_scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/sim/sim_nodes.h"

namespace tandem::decode {
namespace {

using sim::LedgerRequest;
using std::chrono::milliseconds;
using std::chrono::seconds;

// One decode node, and a hand that plays the router.
class DecodeSchedulerTest : public ::testing::Test {
 protected:
  void start(sim::NodeOptions options = {}) {
    options_ = options;
    node_ = std::make_unique<sim::SimDecode>(world_, network_, "decode-0", 1, options);
    node_->to_router = [this](control::ToRouter m) { take(std::move(m)); };
  }

  void take(control::ToRouter m) {
    for (const auto& run : m.tokens().runs()) {
      auto& answer = answers_[run.request_id()];
      ASSERT_EQ(run.first_index(), answer.size() + first_index_[run.request_id()]);
      for (const auto& t : run.tokens()) answer.push_back(t.id());
      if (run.finish() != control::FINISH_NONE) {
        ASSERT_FALSE(finishes_.contains(run.request_id())) << "ended twice";
        finishes_[run.request_id()] = run.finish();
      }
    }
    if (m.has_failed()) failures_.push_back(m.failed());
    if (m.has_reserved()) replies_.push_back(m.reserved());
    if (m.has_admitted()) ++admitted_;
    if (m.has_tokens()) batches_.push_back(m.tokens().runs_size());
  }

  void generate(uint64_t id, const LedgerRequest& r) {
    control::ToNode m;
    *m.mutable_generate()->mutable_task() = sim::make_task(id, r);
    node_->receive(m);
  }
  void cancel(uint64_t id, uint64_t transfer = 0) {
    control::ToNode m;
    m.mutable_cancel()->set_request_id(id);
    m.mutable_cancel()->set_transfer_id(transfer);
    node_->receive(m);
  }
  control::ToNode reserve_message(uint64_t transfer, uint64_t id, const LedgerRequest& r,
                                  uint64_t writer = 50, uint32_t lease_ms = 1000) {
    control::ToNode m;
    auto& reserve = *m.mutable_reserve();
    reserve.set_transfer_id(transfer);
    reserve.set_prefill_generation(writer);
    reserve.set_lease_ms(lease_ms);
    *reserve.mutable_task() = sim::make_task(id, r);
    return m;
  }
  LedgerRequest request(size_t prompt, uint32_t max_new) {
    return {.prompt = sim::random_prompt(world_, prompt),
            .max_new_tokens = max_new,
            .min_new_tokens = 0,
            .stop_tokens = {},
            .seed = world_.draw()};
  }
  [[nodiscard]] bool run_idle(Duration limit = seconds(60)) {
    return world_.run_until([&] { return node_->idle(); }, limit);
  }
  std::vector<TokenId> expected(const LedgerRequest& r) const {
    return sim::ledger_answer(r, sim::kVocab, options_.max_context);
  }
  void expect_pool_empty() {
    EXPECT_EQ(node_->kv().usage().used, 0U);
    EXPECT_EQ(node_->engine().mismatches(), 0U);
  }

  sim::World world_{1};
  sim::SimNetwork network_{world_};
  sim::NodeOptions options_;
  std::unique_ptr<sim::SimDecode> node_;
  std::map<uint64_t, std::vector<TokenId>> answers_;
  std::map<uint64_t, size_t> first_index_;
  std::map<uint64_t, control::FinishReason> finishes_;
  std::vector<control::Failed> failures_;
  std::vector<control::Reserved> replies_;
  std::vector<int> batches_;
  int admitted_ = 0;
};

TEST_F(DecodeSchedulerTest, GeneratesTheSameTokensInAnyCompany) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kInt8, kv::KvFormat::kInt4}) {
    SCOPED_TRACE(kv::to_string(format));
    answers_.clear();
    finishes_.clear();
    start({.format = format});
    std::map<uint64_t, LedgerRequest> requests;
    for (uint64_t id = 1; id <= 12; ++id) {
      requests[id] = request(world_.draw(1, 60), static_cast<uint32_t>(world_.draw(1, 40)));
      generate(id, requests[id]);
      world_.run_for(milliseconds(3));
    }
    ASSERT_TRUE(run_idle());
    for (const auto& [id, r] : requests) {
      EXPECT_EQ(answers_[id], expected(r)) << id;
      EXPECT_EQ(finishes_[id], control::FINISH_LENGTH);
    }
    expect_pool_empty();
  }
}

TEST_F(DecodeSchedulerTest, BatchesWhatIsReadyIntoOneMessageAStep) {
  start();
  for (uint64_t id = 1; id <= 8; ++id) generate(id, request(16, 30));
  ASSERT_TRUE(run_idle());
  EXPECT_GE(*std::max_element(batches_.begin(), batches_.end()), 8);
}

TEST_F(DecodeSchedulerTest, AStopTokenEndsTheAnswerUnlessItIsTooEarly) {
  start();
  auto r = request(20, 30);
  const auto free_run = expected(r);
  r.stop_tokens = {free_run[5]};
  const size_t at = static_cast<size_t>(std::find(free_run.begin(), free_run.end(), free_run[5]) -
                                        free_run.begin());
  generate(1, r);
  auto later = r;
  later.min_new_tokens = static_cast<uint32_t>(at) + 1;
  generate(2, later);
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[1],
            std::vector<TokenId>(free_run.begin(), free_run.begin() + static_cast<long>(at)));
  EXPECT_EQ(finishes_[1], control::FINISH_STOP);
  EXPECT_EQ(answers_[2], expected(later));
  EXPECT_GT(answers_[2].size(), at);
}

TEST_F(DecodeSchedulerTest, AFullContextEndsTheAnswer) {
  start({.max_context = 64});
  const auto r = request(50, 1000);
  generate(1, r);
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[1].size(), 14U);
  EXPECT_EQ(finishes_[1], control::FINISH_LENGTH);
  EXPECT_EQ(answers_[1], expected(r));
}

TEST_F(DecodeSchedulerTest, AResumedRequestContinuesWithTheSameTokens) {
  start();
  const auto r = request(33, 40);
  const auto whole = expected(r);
  auto task = sim::make_task(1, r);
  for (size_t i = 0; i < 11; ++i) task.add_tokens(whole[i]);
  task.set_max_new_tokens(29);
  first_index_[1] = 11;
  control::ToNode m;
  *m.mutable_generate()->mutable_task() = task;
  node_->receive(m);
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[1], std::vector<TokenId>(whole.begin() + 11, whole.end()));
}

TEST_F(DecodeSchedulerTest, ScoresAPromptWithoutGenerating) {
  start();
  const auto r = request(40, 0);
  auto task = sim::make_task(1, r);
  task.set_prompt_logprobs(0);
  control::ToNode m;
  *m.mutable_generate()->mutable_task() = task;
  std::vector<control::Token> scores;
  node_->to_router = [&](control::ToRouter message) {
    for (const auto& run : message.tokens().runs()) {
      scores.assign(run.prompt_scores().begin(), run.prompt_scores().end());
      EXPECT_EQ(run.tokens_size(), 0);
    }
  };
  node_->receive(m);
  ASSERT_TRUE(run_idle());
  ASSERT_EQ(scores.size(), 39U);
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].id(), r.prompt[i + 1]);
    const auto before = std::span(r.prompt).first(i + 1);
    EXPECT_EQ(scores[i].logprob(), -static_cast<float>(sim::ledger_token(before, 0, 1000)));
  }
}

TEST_F(DecodeSchedulerTest, AFinishedRequestLeavesItsBlocksToTheNextPromptThatBeginsAlike) {
  start();
  const auto r = request(40, 24);
  generate(1, r);
  ASSERT_TRUE(run_idle());
  LedgerRequest next = r;
  next.prompt.insert(next.prompt.end(), answers_[1].begin(), answers_[1].end());
  generate(2, next);
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[2], expected(next));
  EXPECT_EQ(node_->kv().usage().prefix_hit_tokens, 48U);  // 63 positions were computed: 3 blocks
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, KvExhaustionPreemptsAndLosesNothing) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4}) {
    SCOPED_TRACE(kv::to_string(format));
    answers_.clear();
    // Predictions of one token: the node takes in far more than it can carry to the end.
    start({.format = format, .blocks = 12, .tails = 64, .max_context = 192});
    std::map<uint64_t, LedgerRequest> requests;
    for (uint64_t id = 1; id <= 6; ++id) {
      requests[id] = request(16, 100);
      control::ToNode m;
      auto task = sim::make_task(id, requests[id]);
      task.set_predicted_new_tokens(1);
      *m.mutable_generate()->mutable_task() = task;
      node_->receive(m);
    }
    ASSERT_TRUE(run_idle(seconds(600)));
    EXPECT_TRUE(failures_.empty());
    for (const auto& [id, r] : requests) EXPECT_EQ(answers_[id], expected(r)) << id;
    EXPECT_NE(node_->metrics().exposition().find("tandem_decode_preemptions_total"),
              std::string::npos);
    EXPECT_EQ(node_->metrics().exposition().find("tandem_decode_preemptions_total 0"),
              std::string::npos);
    expect_pool_empty();
    finishes_.clear();
  }
}

TEST_F(DecodeSchedulerTest, AdmissionRefusesWhatThePredictionsDoNotLeaveRoomFor) {
  start({.blocks = 16, .max_context = 256});
  auto first = sim::make_task(1, request(32, 200));
  first.set_predicted_new_tokens(150);
  control::ToNode m;
  *m.mutable_generate()->mutable_task() = first;
  node_->receive(m);
  node_->receive(reserve_message(9, 2, request(64, 64)));
  ASSERT_EQ(replies_.size(), 1U);
  EXPECT_FALSE(replies_[0].granted());
  EXPECT_EQ(replies_[0].error_code(), "resource_exhausted");
  ASSERT_TRUE(run_idle());
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, RunningRequestsKeepTheirPaceWhileALongPromptIsPrefilled) {
  sim::NodeOptions options{.blocks = 256, .max_context = 2048};
  options.decode.chunk_tokens = 32;
  start(options);
  generate(1, request(16, 200));
  world_.run_for(milliseconds(60));
  // 2 ms + 50 us a row: a whole prompt of 1600 would stop the other for 80 ms, a chunk of 32
  // for 3.6.
  std::vector<Duration> gaps;
  TimePoint last = world_.now();
  node_->to_router = [&](control::ToRouter message) {
    for (const auto& run : message.tokens().runs()) {
      if (run.request_id() != 1) continue;
      gaps.push_back(world_.now() - last);
      last = world_.now();
    }
  };
  generate(2, request(1600, 4));
  ASSERT_TRUE(world_.run_until([&] { return gaps.size() > 60; }, seconds(5)));
  for (const Duration gap : gaps) EXPECT_LE(gap, milliseconds(5));
  ASSERT_TRUE(run_idle());
}

// Prompts without a pause beside answers whose number changes: no step without prompts ever says
// what decoding takes, and yet 99 in 100 keep the budget and prompts get what is left of it.
TEST_F(DecodeSchedulerTest, PromptsTakeWhatTheStepsBudgetLeaves) {
  sim::NodeOptions options{.blocks = 8192, .max_context = 2048, .prefix_cache = false};
  options.decode.mixed_target = milliseconds(8);
  start(options);
  std::vector<Duration> gaps;
  TimePoint last = world_.now();
  size_t prompts_done = 0;
  node_->to_router = [&](control::ToRouter message) {
    for (const auto& run : message.tokens().runs()) {
      if (run.finish() != control::FINISH_NONE) prompts_done += run.request_id() >= 100 ? 1 : 0;
      if (run.request_id() != 1) continue;
      gaps.push_back(world_.now() - last);
      last = world_.now();
    }
  };
  generate(1, request(16, 1200));
  for (uint64_t id = 2; id <= 20; ++id) generate(id, request(16, 30));  // gone after a while
  for (uint64_t id = 100; id < 140; ++id) generate(id, request(1500, 1));
  ASSERT_TRUE(world_.run_until([&] { return prompts_done == 40; }, seconds(60)));
  gaps.erase(gaps.begin(), gaps.begin() + 20);  // nothing was known yet
  const auto late = static_cast<size_t>(
      std::ranges::count_if(gaps, [](Duration gap) { return gap > milliseconds(8); }));
  EXPECT_LE(late * 50, gaps.size());
  // 2 ms + 50 us a row leave 118 rows a step, hence 112 in whole pages: 60000 tokens in 536 steps.
  EXPECT_LT(gaps.size(), 640U);
  ASSERT_TRUE(run_idle());
}

TEST_F(DecodeSchedulerTest, CancelFreesInEveryPhase) {
  start();
  generate(1, request(200, 50));  // prefilling
  generate(2, request(16, 50));
  world_.run_for(milliseconds(1));  // inside of the first step
  cancel(1);
  world_.run_for(milliseconds(40));  // 2 is generating
  cancel(2);
  node_->receive(reserve_message(7, 3, request(40, 5)));  // reserved
  cancel(3, 7);
  cancel(3, 7);  // twice: nothing to free any more
  cancel(99);    // unknown
  ASSERT_TRUE(run_idle(seconds(1)));
  EXPECT_TRUE(failures_.empty());
  EXPECT_EQ(node_->wire().open_receives(), 0U);
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, AnExpiredLeaseIsSweptByTheTickAlone) {
  start();
  node_->receive(reserve_message(7, 1, request(40, 5), 50, 200));
  ASSERT_TRUE(replies_.at(0).granted());
  EXPECT_GT(node_->kv().usage().used, 0U);
  world_.run_for(milliseconds(150));
  EXPECT_TRUE(failures_.empty());
  world_.run_for(milliseconds(100));  // no message, no event: only ticks
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].code(), "deadline_exceeded");
  EXPECT_EQ(failures_[0].transfer_id(), 7U);
  EXPECT_EQ(node_->wire().open_receives(), 0U);
  EXPECT_NE(node_->metrics().exposition().find("tandem_decode_leases_expired_total 1"),
            std::string::npos);
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, ARepeatedReserveGetsTheSameAnswerAndNoSecondLease) {
  start();
  const auto m = reserve_message(7, 1, request(40, 5));
  node_->receive(m);
  const auto used = node_->kv().usage().used;
  node_->receive(m);
  ASSERT_EQ(replies_.size(), 2U);
  EXPECT_EQ(replies_[0].SerializeAsString(), replies_[1].SerializeAsString());
  EXPECT_EQ(node_->kv().usage().used, used);
  cancel(1);
  ASSERT_TRUE(run_idle());
  node_->receive(m);  // a replay of something that has ended
  EXPECT_FALSE(replies_.back().granted());
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, AGoneWriterIsFencedAndItsLeasesEnd) {
  start();
  node_->receive(reserve_message(7, 1, request(40, 5), 50));
  node_->receive(reserve_message(8, 2, request(40, 5), 51));
  control::ToNode gone;
  gone.mutable_peer_gone()->set_node_id("prefill-0");
  gone.mutable_peer_gone()->set_generation(50);
  node_->receive(gone);
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].request_id(), 1U);
  EXPECT_EQ(node_->wire().open_receives(), 1U);
  cancel(2);
  ASSERT_TRUE(run_idle());
  expect_pool_empty();
}

// Its own step failed, say. The router may hear of it from here first.
TEST_F(DecodeSchedulerTest, AWriterThatGivesUpLeavesTheRequestToOthers) {
  start();
  node_->receive(reserve_message(7, 1, request(40, 5), 50));
  node_->wire().events->on_receive_failed(
      TransferId{7}, make_error(ErrorCode::kCancelled, "the engine has stopped"));
  ASSERT_TRUE(run_idle());
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_TRUE(failures_[0].retryable());
  EXPECT_EQ(failures_[0].detail(), "the engine has stopped");
  cancel(1);
  ASSERT_TRUE(run_idle());
  expect_pool_empty();
}

// A prefill node that was frozen comes back as the same process, with its old generation.
TEST_F(DecodeSchedulerTest, AGoneWriterThatTheRouterNamesAgainIsLetIn) {
  start();
  node_->receive(reserve_message(7, 1, request(40, 5), 50));
  control::ToNode gone;
  gone.mutable_peer_gone()->set_node_id("prefill-0");
  gone.mutable_peer_gone()->set_generation(50);
  node_->receive(gone);
  EXPECT_EQ(node_->wire().open_receives(), 0U);
  node_->receive(reserve_message(9, 3, request(40, 5), 50));
  EXPECT_TRUE(replies_.back().granted());
  EXPECT_EQ(node_->wire().open_receives(), 1U);
  cancel(3);
  ASSERT_TRUE(run_idle());
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, OneFailingRequestDoesNotFailItsCompany) {
  start();
  const auto good = request(20, 30);
  const auto bad = request(21, 30);
  node_->engine().fault = [&](auto sequences) -> std::optional<Error> {
    for (const auto& s : sequences) {
      if (s.history.tokens.size() >= 25 && s.history.tokens[20] == bad.prompt[20] &&
          s.history.tokens[0] == bad.prompt[0]) {
        return make_error(ErrorCode::kInternal, "poisoned");
      }
    }
    return std::nullopt;
  };
  generate(1, good);
  generate(2, bad);
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[1], expected(good));
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].request_id(), 2U);
  expect_pool_empty();
}

TEST_F(DecodeSchedulerTest, DrainFinishesWhatRunsAndRefusesWhatComes) {
  start();
  const auto r = request(20, 30);
  generate(1, r);
  control::ToNode drain;
  drain.mutable_drain();
  node_->receive(drain);
  generate(2, request(20, 30));
  node_->receive(reserve_message(7, 3, request(20, 30)));
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[1], expected(r));
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].code(), "unavailable");
  EXPECT_TRUE(failures_[0].retryable());
  EXPECT_FALSE(replies_.at(0).granted());
  EXPECT_TRUE(node_->heartbeat().draining());
}

TEST_F(DecodeSchedulerTest, ALostRouterDropsEverything) {
  start();
  generate(1, request(20, 300));
  node_->receive(reserve_message(7, 2, request(20, 30)));
  world_.run_for(milliseconds(30));
  node_->disconnect();
  ASSERT_TRUE(run_idle(milliseconds(100)));
  EXPECT_TRUE(failures_.empty());
  expect_pool_empty();
  // The next router may use the same numbers.
  const auto r = request(20, 30);
  answers_.clear();
  generate(1, r);
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(answers_[1], expected(r));
}

TEST_F(DecodeSchedulerTest, RefusesWhatCanNeverFitOrIsWrong) {
  start({.blocks = 4, .max_context = 512});
  generate(1, request(100, 5));
  auto task = sim::make_task(2, request(10, 5));
  task.set_tokens(3, -5);
  control::ToNode m;
  *m.mutable_generate()->mutable_task() = task;
  node_->receive(m);
  control::ToNode prefill;
  prefill.mutable_prefill()->mutable_task()->set_request_id(3);
  node_->receive(prefill);
  ASSERT_EQ(failures_.size(), 3U);
  EXPECT_EQ(failures_[0].code(), "payload_too_large");
  EXPECT_FALSE(failures_[0].retryable());
  EXPECT_EQ(failures_[1].code(), "invalid_argument");
  EXPECT_EQ(failures_[2].code(), "unsupported");
  EXPECT_TRUE(node_->idle());
}

TEST_F(DecodeSchedulerTest, ManyRequestsOverFewPlacesAllFinish) {
  sim::NodeOptions options;
  options.blocks = 200;
  options.decode.max_sequences = 3;
  options.decode.queue_ageing = milliseconds(50);
  start(options);
  std::map<uint64_t, LedgerRequest> requests;
  for (uint64_t id = 1; id <= 20; ++id) {
    requests[id] = request(10, static_cast<uint32_t>(world_.draw(1, 60)));
    generate(id, requests[id]);
  }
  ASSERT_TRUE(run_idle(seconds(600)));
  for (const auto& [id, r] : requests) EXPECT_EQ(answers_[id], expected(r)) << id;
  // Three generating, and whatever finished its prompt in the same step: a chunk holds 25 of these.
  for (const int runs : batches_) EXPECT_LE(runs, 3 + 20);
}

}  // namespace
}  // namespace tandem::decode
