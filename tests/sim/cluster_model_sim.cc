// The cluster with real models: what three nodes produce together is what the reference
// implementation, or one engine alone with the same KV format, produces.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/engine/cpu/cpu_ops.h"
#include "common/engine/engine.h"
#include "common/model/checkpoint.h"
#include "tests/sim/cluster.h"
#include "tests/support/engine_harness.h"
#include "tests/support/golden.h"

namespace tandem::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<engine::Ops> cpu_ops(DType weights) {
  engine::CpuOptions options;
  options.threads = 1;
  options.weights = weights;
  auto ops = engine::create_cpu_ops(options);
  EXPECT_TRUE(ops) << ops.error().to_string();
  return ops ? std::move(*ops) : nullptr;
}

// Nodes that run `checkpoint`, each with an engine of its own.
ClusterOptions model_cluster(const model::Checkpoint& checkpoint, DType weights,
                             kv::KvFormat format) {
  const model::ModelConfig& m = checkpoint.config();
  NodeOptions node;
  node.layout = kv::KvLayout{
      .layers = m.layers, .kv_heads = m.kv_heads, .head_dim = m.head_dim, .format = format};
  node.vocab = m.vocab;
  node.max_context = std::min(m.max_positions, 512U);
  node.blocks = 200;
  node.prefill.max_batch_tokens = node.decode.max_batch_tokens = 64;
  node.prefill.chunk_tokens = node.decode.chunk_tokens = 32;
  node.make_step = [&checkpoint, weights](const engine::KvPages& pages) {
    std::shared_ptr<engine::Ops> ops = cpu_ops(weights);
    auto made = engine::Engine::create(checkpoint, *ops, {.max_rows = 64, .max_context = 512});
    EXPECT_TRUE(made) << made.error().to_string();
    std::shared_ptr<engine::Engine> engine = std::move(*made);
    return node::StepFunction([ops, engine, pages](auto sequences, const auto& hook) {
      return engine->step(sequences, pages, hook);
    });
  };
  ClusterOptions options;
  options.prefill = options.decode = node;
  options.real_inproc = true;
  options.dispatch.local_prefill_below = 1;
  return options;
}

TEST(ClusterModelSim, GreedyAnswersEqualTheReferenceImplementation) {
  for (const std::string name : {"qwen2", "llama3", "qwen3_moe", "mistral_window", "gguf_q4_1"}) {
    SCOPED_TRACE(name);
    const auto folder = std::filesystem::path(TANDEM_TEST_DATA) / "golden" / name;
    const auto golden = testing::load_golden(folder);
    const auto checkpoint = model::Checkpoint::open(folder);
    ASSERT_TRUE(golden && checkpoint);
    Cluster cluster(model_cluster(**checkpoint, DType::kF32, kv::KvFormat::kF32));
    std::vector<uint64_t> ids;
    for (const auto& c : *golden) {
      ids.push_back(cluster.submit({.prompt = c.prompt,
                                    .max_new_tokens = static_cast<uint32_t>(c.greedy.size()),
                                    .min_new_tokens = 0,
                                    .stop_tokens = {},
                                    .seed = 0}));
    }
    ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(120)));
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(cluster.answer(ids[i]).tokens, (*golden)[i].greedy) << "case " << i;
    }
    EXPECT_GT(cluster.dispatcher().counters().transfers, 0U);
    cluster.expect_nothing_leaked();
  }
}

// Everything leaves the device early: the tail's own engine draws most of each answer.
TEST(ClusterModelSim, GreedyAnswersEqualTheReferenceAlsoWhenTheyMoveToTheCpuTail) {
  for (const std::string name : {"qwen2", "llama3", "qwen3_moe"}) {
    for (const auto format : {kv::KvFormat::kF32, kv::KvFormat::kBf16}) {
      SCOPED_TRACE(name + " to " + std::string(kv::to_string(format)));
      const auto folder = std::filesystem::path(TANDEM_TEST_DATA) / "golden" / name;
      const auto golden = testing::load_golden(folder);
      const auto checkpoint = model::Checkpoint::open(folder);
      ASSERT_TRUE(golden && checkpoint);
      auto options = model_cluster(**checkpoint, DType::kF32, kv::KvFormat::kF32);
      NodeOptions& node = options.decode;
      node.tail_blocks = 200;
      node.tail_format = format;
      const uint64_t all = node.blocks * node.kv_layout().block_bytes();
      node.decode.cpu_tail = {.after_tokens = 3, .free_below = all, .return_above = all};
      Cluster cluster(options);
      std::vector<uint64_t> ids;
      for (const auto& c : *golden) {
        ids.push_back(cluster.submit({.prompt = c.prompt,
                                      .max_new_tokens = static_cast<uint32_t>(c.greedy.size()),
                                      .min_new_tokens = 0,
                                      .stop_tokens = {},
                                      .seed = 0}));
      }
      ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(120)));
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(cluster.answer(ids[i]).tokens, (*golden)[i].greedy) << "case " << i;
      }
      EXPECT_NE(cluster.metrics("decode-0")
                    .find("cpu_tail_moves_total{direction=\"out\"} " + std::to_string(ids.size())),
                std::string::npos);
      cluster.expect_nothing_leaked();
    }
  }
}

TEST(ClusterModelSim, EveryKvFormatGivesWhatOneEngineGivesWithIt) {
  const auto checkpoint = model::Checkpoint::open(TANDEM_MODELS "/chat-6m");
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  for (const auto format :
       {kv::KvFormat::kBf16, kv::KvFormat::kInt8, kv::KvFormat::kK8V4, kv::KvFormat::kInt4}) {
    SCOPED_TRACE(kv::to_string(format));
    auto alone = testing::EngineHarness::create(**checkpoint, cpu_ops(DType::kBf16),
                                                {.format = format, .max_rows = 512});
    ASSERT_TRUE(alone) << alone.error().to_string();
    auto options = model_cluster(**checkpoint, DType::kBf16, format);
    options.decode.blocks = 26;  // company, growth and preemption
    Cluster cluster(options);
    for (int i = 0; i < 5; ++i) {
      LedgerRequest r;
      r.prompt.resize(cluster.world.draw(5, 120));
      for (auto& t : r.prompt) t = static_cast<TokenId>(cluster.world.draw(0, 4000));
      r.max_new_tokens = 40;
      cluster.submit(r);
      cluster.world.run_for(milliseconds(10));
    }
    ASSERT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(120)));
    for (const auto& [id, a] : cluster.answers()) {
      engine::SamplingParams greedy;
      greedy.temperature = 0;
      const auto expected = (*alone)->generate(a.request.prompt, a.request.max_new_tokens, greedy);
      ASSERT_TRUE(expected) << expected.error().to_string();
      EXPECT_EQ(a.tokens, *expected) << id;
    }
    cluster.expect_nothing_leaked();
  }
}

}  // namespace
}  // namespace tandem::sim
