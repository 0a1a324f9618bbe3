#include <gtest/gtest.h>

#include "tests/sim/cluster.h"

namespace tandem::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ClusterSim, AnswersEqualThoseOfASingleNodeForEveryKvFormat) {
  for (const auto format : {kv::KvFormat::kF32, kv::KvFormat::kBf16, kv::KvFormat::kInt8,
                            kv::KvFormat::kK8V4, kv::KvFormat::kInt4}) {
    for (const bool real : {false, true}) {
      SCOPED_TRACE(std::string(kv::to_string(format)) + (real ? " inproc" : " simulated wire"));
      ClusterOptions options;
      options.real_inproc = real;
      options.prefill.format = options.decode.format = format;
      Cluster cluster(options);
      for (int i = 0; i < 12; ++i) {
        cluster.submit_random(cluster.world.draw(1, 150),
                              static_cast<uint32_t>(cluster.world.draw(1, 30)));
        cluster.world.run_for(milliseconds(5));
      }
      ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(60)));
      cluster.expect_all_answers_right();
      cluster.expect_nothing_leaked();
      EXPECT_GT(cluster.dispatcher().counters().remote, 0U);
      EXPECT_GT(cluster.dispatcher().counters().transfers, 0U);
    }
  }
}

}  // namespace
}  // namespace tandem::sim
