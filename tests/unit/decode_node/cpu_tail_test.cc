// Requests that move between a decode node's device and its CPU tail.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "decode_node/decode_scheduler.h"
#include "tests/sim/sim_nodes.h"

namespace tandem::decode {
namespace {

using sim::LedgerRequest;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// One decode node with a tail, and a hand that plays the router.
class CpuTailTest : public ::testing::Test {
 protected:
  // A pool of `blocks` on the device; requests leave below `free_below` free blocks and come back
  // from `return_above` on.
  static sim::NodeOptions node_options(uint32_t blocks, uint32_t free_below, uint32_t return_above,
                                       uint32_t tail_blocks = 64) {
    sim::NodeOptions o{.blocks = blocks, .tails = 64, .max_context = 192};
    const uint64_t bytes = o.kv_layout().block_bytes();
    o.decode.cpu_tail = {
        .after_tokens = 20, .free_below = free_below * bytes, .return_above = return_above * bytes};
    o.tail_blocks = tail_blocks;
    return o;
  }
  void start(const sim::NodeOptions& options) {
    options_ = options;
    answers_.clear();
    requests_.clear();
    failures_.clear();
    node_ = std::make_unique<sim::SimDecode>(world_, network_, "decode-0", 1, options);
    node_->to_router = [this](control::ToRouter m) {
      for (const auto& run : m.tokens().runs()) {
        auto& answer = answers_[run.request_id()];
        ASSERT_EQ(run.first_index(), answer.size());
        for (const auto& t : run.tokens()) answer.push_back(t.id());
      }
      if (m.has_failed()) failures_.push_back(m.failed());
    };
  }
  // Predicted to end after one token, so that the node takes in more than it can carry.
  void generate(uint64_t id, size_t prompt, uint32_t max_new) {
    requests_[id] = {.prompt = sim::random_prompt(world_, prompt),
                     .max_new_tokens = max_new,
                     .min_new_tokens = 0,
                     .stop_tokens = {},
                     .seed = world_.draw()};
    control::ToNode m;
    auto task = sim::make_task(id, requests_[id]);
    task.set_predicted_new_tokens(1);
    *m.mutable_generate()->mutable_task() = task;
    node_->receive(m);
  }
  void cancel(uint64_t id) {
    control::ToNode m;
    m.mutable_cancel()->set_request_id(id);
    node_->receive(m);
    requests_.erase(id);
  }
  [[nodiscard]] bool run_idle(Duration limit = seconds(600)) {
    return world_.run_until([&] { return node_->idle(); }, limit);
  }
  [[nodiscard]] double metric(const std::string& name) {
    const std::string text = node_->metrics().exposition();
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  [[nodiscard]] double moves(const std::string& direction) {
    return metric("tandem_decode_cpu_tail_moves_total{direction=\"" + direction + "\"}");
  }
  void expect_right_and_clean() {
    EXPECT_TRUE(failures_.empty());
    for (const auto& [id, r] : requests_) {
      EXPECT_EQ(answers_[id], sim::ledger_answer(r, sim::kVocab, options_.max_context)) << id;
    }
    EXPECT_EQ(node_->blocks_used(), 0U);
    EXPECT_EQ(node_->mismatches(), 0U);
  }

  sim::World world_{1};
  sim::SimNetwork network_{world_};
  sim::NodeOptions options_;
  std::unique_ptr<sim::SimDecode> node_;
  std::map<uint64_t, LedgerRequest> requests_;
  std::map<uint64_t, std::vector<TokenId>> answers_;
  std::vector<control::Failed> failures_;
};

TEST_F(CpuTailTest, ALongAnswerLeavesAShortDeviceAndKeepsItsTokens) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kInt8, kv::KvFormat::kInt4}) {
    SCOPED_TRACE(kv::to_string(format));
    auto options = node_options(16, 15, 16);  // short from the second block on
    options.format = format;
    const uint64_t bytes = options.kv_layout().block_bytes();
    options.decode.cpu_tail.free_below = 15 * bytes;
    options.decode.cpu_tail.return_above = 16 * bytes;
    start(options);
    generate(1, 30, 100);
    ASSERT_TRUE(world_.run_until([&] { return answers_[1].size() == 20; }, seconds(5)));
    EXPECT_EQ(node_->tail_engine().steps(), 0U);
    ASSERT_TRUE(world_.run_until([&] { return node_->tail_engine().steps() > 0; }, seconds(5)));
    EXPECT_LE(answers_[1].size(), 24U);
    EXPECT_EQ(node_->kv().usage().used, 0U);  // all of it is free for others
    ASSERT_TRUE(run_idle());
    expect_right_and_clean();
    EXPECT_EQ(moves("out"), 1);
    EXPECT_EQ(moves("back"), 0);  // its blocks would not leave 15 free again
    // 3 blocks hold the 51 positions that stood when it left; a tail page holds as much as a page
    // in bf16.
    EXPECT_GT(metric("tandem_decode_cpu_tail_bytes_total"), 3.0 * static_cast<double>(bytes));
    EXPECT_EQ(metric("tandem_decode_cpu_tail_seconds_count"), 1);
  }
}

TEST_F(CpuTailTest, AnAnswerStaysWhileTheDeviceHasRoomOrItIsShort) {
  start(node_options(64, 4, 8));
  generate(1, 30, 100);
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
  start(node_options(16, 15, 16));
  for (uint64_t id = 1; id <= 2; ++id) generate(id, 30, 20);
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
  EXPECT_EQ(moves("out"), 0);
}

TEST_F(CpuTailTest, ItComesBackWhenTheDeviceHasRoomAgain) {
  start(node_options(16, 8, 12));
  generate(1, 30, 160);
  generate(2, 100, 60);  // takes 10 of the 16 blocks in the end
  ASSERT_TRUE(world_.run_until([&] { return moves("out") > 0; }, seconds(5)));
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
  EXPECT_GE(moves("back"), 1);
  EXPECT_EQ(metric("tandem_decode_preemptions_total"), 0);
}

TEST_F(CpuTailTest, KvExhaustionMovesInsteadOfPreempting) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4}) {
    auto options = node_options(12, 0, 12, 128);
    options.format = format;
    options.decode.cpu_tail.return_above = 12 * options.kv_layout().block_bytes();
    options.decode.cpu_tail.after_tokens = 1000;
    start(options);
    for (uint64_t id = 1; id <= 6; ++id) generate(id, 16, 100);
    ASSERT_TRUE(run_idle());
    expect_right_and_clean();
    EXPECT_GE(moves("out"), 3);
    EXPECT_EQ(metric("tandem_decode_preemptions_total"), 0);
  }
}

// What a request waits for is counted against its goal of latency, whoever made it wait.
TEST_F(CpuTailTest, TheTimeOfAMoveCountsAsWaiting) {
  auto options = node_options(16, 15, 16);
  options.move_batch = milliseconds(20);
  start(options);
  generate(1, 30, 100);
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
  ASSERT_EQ(moves("out"), 1);
  const double moved = metric("tandem_decode_cpu_tail_seconds_sum");
  EXPECT_GE(moved, 0.02);
  EXPECT_GE(metric("tandem_decode_queue_wait_seconds_sum"), moved);
  start(node_options(64, 4, 8));
  generate(1, 30, 100);
  ASSERT_TRUE(run_idle());
  EXPECT_LT(metric("tandem_decode_queue_wait_seconds_sum"), 0.02) << "without a move";
}

TEST_F(CpuTailTest, NothingIsLostWhenBothPoolsAreUsedUp) {
  for (const uint32_t tail_blocks : {7U, 9U, 12U}) {  // a whole answer needs 11
    for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4}) {
      SCOPED_TRACE(std::to_string(tail_blocks) + " " + std::string(kv::to_string(format)));
      auto options = node_options(12, 4, 6, tail_blocks);
      options.format = format;
      start(options);
      for (uint64_t id = 1; id <= 6; ++id) generate(id, 16, 150);
      ASSERT_TRUE(run_idle(seconds(2000)));
      expect_right_and_clean();
      EXPECT_GT(moves("out"), 0);
      EXPECT_GT(metric("tandem_decode_preemptions_total"), 0);
    }
  }
}

TEST_F(CpuTailTest, CancelFreesInEveryPhaseOfAMove) {
  auto options = node_options(16, 15, 16);
  options.move_batch = milliseconds(2);
  start(options);
  generate(1, 30, 100);
  ASSERT_TRUE(world_.run_until([&] { return answers_[1].size() == 20; }, seconds(5)));
  const TimePoint before = world_.now();
  ASSERT_TRUE(world_.run_until([&] { return moves("out") > 0; }, seconds(5)));
  const Duration span = world_.now() - before + milliseconds(10);
  ASSERT_TRUE(run_idle());
  uint64_t id = 2;
  for (Duration at{}; at < span; at += microseconds(700)) {
    generate(id, 30, 100);
    ASSERT_TRUE(world_.run_until([&] { return answers_[id].size() == 20; }, seconds(5)));
    world_.run_for(at);
    cancel(id);
    // At once but for the running step or batch.
    ASSERT_TRUE(run_idle(milliseconds(15))) << to_seconds(at);
    EXPECT_EQ(node_->blocks_used(), 0U);
    ++id;
  }
  generate(id, 30, 100);
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
}

TEST_F(CpuTailTest, AFailedMoveLeavesTheRequestWhereItIs) {
  start(node_options(16, 15, 16));
  int batches = 0;
  node_->mover().fault = [&](const node::MoveJob&) -> std::optional<Error> {
    if (++batches % 2 == 1) return std::nullopt;  // in the middle
    return make_error(ErrorCode::kInternal, "a broken copy");
  };
  generate(1, 30, 100);
  generate(2, 30, 100);
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
  EXPECT_EQ(metric("tandem_decode_cpu_tail_failed_moves_total"), 2);
  EXPECT_EQ(moves("out"), 0);
}

TEST_F(CpuTailTest, AFailingTailStepFailsItsOwnRequestOnly) {
  start(node_options(16, 15, 16));
  generate(1, 30, 60);
  generate(2, 31, 60);
  const TokenId bad = requests_[2].prompt[30];
  node_->tail_engine().fault = [&](auto sequences) -> std::optional<Error> {
    for (const auto& s : sequences) {
      if (s.history.prompt_tokens == 31 && s.history.tokens[30] == bad) {
        return make_error(ErrorCode::kInternal, "poisoned");
      }
    }
    return std::nullopt;
  };
  ASSERT_TRUE(run_idle());
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_EQ(failures_[0].request_id(), 2U);
  failures_.clear();
  requests_.erase(2);
  expect_right_and_clean();
}

TEST_F(CpuTailTest, ALostRouterDropsWhatIsMoving) {
  auto options = node_options(16, 15, 16);
  options.move_batch = milliseconds(2);
  start(options);
  generate(1, 30, 100);
  ASSERT_TRUE(world_.run_until([&] { return node_->tail_kv().usage().used > 0; }, seconds(5)));
  EXPECT_EQ(node_->heartbeat().running(), 1U);
  EXPECT_EQ(node_->heartbeat().queued(), 0U);
  node_->disconnect();
  ASSERT_TRUE(run_idle(milliseconds(20)));
  EXPECT_EQ(node_->blocks_used(), 0U);
  EXPECT_EQ(node_->mismatches(), 0U);
}

TEST_F(CpuTailTest, TheDeviceKeepsItsPaceWhateverTheTailDoes) {
  auto options = node_options(24, 23, 24);
  options.tail_slowdown = 50;
  options.move_batch = milliseconds(3);
  start(options);
  generate(1, 30, 150);
  ASSERT_TRUE(world_.run_until([&] { return node_->tail_kv().usage().used > 0; }, seconds(5)));
  generate(2, 16, 20);
  size_t seen = 0;
  TimePoint last = world_.now();
  while (answers_[2].size() < 20) {
    ASSERT_TRUE(world_.run_until([&] { return answers_[2].size() > seen; }, seconds(5)));
    EXPECT_LE(world_.now() - last, milliseconds(5));
    seen = answers_[2].size();
    last = world_.now();
  }
  ASSERT_TRUE(run_idle());
  expect_right_and_clean();
}

}  // namespace
}  // namespace tandem::decode
