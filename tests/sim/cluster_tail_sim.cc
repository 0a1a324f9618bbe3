// A decode node with a CPU tail in a whole cluster.
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/cluster.h"

namespace tandem::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A device that is short from the start: answers leave it after 10 tokens.
ClusterOptions tail_cluster(kv::KvFormat format = kv::KvFormat::kBf16) {
  ClusterOptions options;
  options.prefill.format = options.decode.format = format;
  options.decode.tail_blocks = 64;
  options.decode.move_batch = milliseconds(1);
  const uint64_t all = options.decode.blocks * options.decode.kv_layout().block_bytes();
  options.decode.decode.cpu_tail = {.after_tokens = 10, .free_below = all, .return_above = all};
  return options;
}

TEST(ClusterTailSim, AnswersEqualThoseOfASingleNode) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kK8V4, kv::KvFormat::kInt4}) {
    SCOPED_TRACE(kv::to_string(format));
    Cluster cluster(tail_cluster(format));
    for (int i = 0; i < 10; ++i) {
      cluster.submit_random(cluster.world.draw(1, 150), 60);
      cluster.world.run_for(milliseconds(20));
    }
    ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(60)));
    cluster.expect_all_answers_right();
    cluster.expect_nothing_leaked();
    EXPECT_NE(cluster.metrics("decode-0").find("cpu_tail_moves_total{direction=\"out\"} 10"),
              std::string::npos);
  }
}

// Once at every millisecond from the first token to the steps in the tail.
TEST(ClusterTailSim, ANodeThatDiesInAnyPhaseOfAMoveIsAPauseAndNothingElse) {
  for (int at = 0; at < 40; ++at) {
    SCOPED_TRACE(std::to_string(at) + " ms");
    Cluster cluster(tail_cluster());
    const auto id = cluster.submit_random(60, 30);
    ASSERT_TRUE(
        cluster.world.run_until([&] { return cluster.answer(id).tokens.size() >= 8; }, seconds(5)));
    cluster.world.run_for(milliseconds(at));
    cluster.crash("decode-0");
    cluster.world.run_for(milliseconds(30));
    cluster.start("decode-0");
    ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(60)));
    EXPECT_TRUE(cluster.answer(id).finish.has_value());
    cluster.expect_all_answers_right();
    cluster.expect_nothing_leaked();
  }
}

TEST(ClusterTailSim, ACancelInAnyPhaseOfAMoveFreesBothPools) {
  Cluster cluster(tail_cluster());
  for (int at = 0; at < 40'000; at += 913) {
    const auto id = cluster.submit_random(60, 60);
    ASSERT_TRUE(
        cluster.world.run_until([&] { return cluster.answer(id).tokens.size() >= 8; }, seconds(5)));
    cluster.world.run_for(microseconds(at));
    cluster.cancel(id);
    EXPECT_TRUE(cluster.world.run_until([&] { return cluster.all_idle(); }, milliseconds(30)));
    EXPECT_EQ(cluster.node("decode-0").blocks_used(), 0U);
  }
  cluster.submit_random(60, 60);
  ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(60)));
  cluster.expect_all_answers_right();
  cluster.expect_nothing_leaked();
}

}  // namespace
}  // namespace tandem::sim
