// A node's engine as its configuration asks for it, with all of a card's memory planned ahead.
#include "common/node/node_engine.h"

#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "tests/gpu/card.h"
#include "tests/support/test_data.h"

namespace tandem::node {
namespace {

using NodeEngineOnACard = cuda::CardTest;

struct Started {
  NodeModel model;
  NodeEngine engine;
};

Result<Started> start(QuantizationChoice quantization, uint64_t kv_memory) {
  const SteadyClock clock;
  ClusterConfig config;
  config.model.path = test_data("../../models/chat-6m");
  config.kv.memory = ByteSize{kv_memory};
  NodeSettings& node = config.prefill.front();
  node.name = "prefill-0";
  node.device = "cuda:0";
  node.gpu_memory_utilization = 0.05;
  node.max_batch_tokens = 256;
  node.max_sequences = 8;
  node.quantization = quantization;
  Started started;
  TANDEM_ASSIGN(started.model, open_node_model(config, node, clock));
  TANDEM_ASSIGN(started.engine, create_node_engine(config, node, {}, 0, started.model));
  return started;
}

// Greedy, after a prompt of some tokens.
Result<TokenId> first_token(const Started& started) {
  const std::vector<TokenId> prompt{1, 17, 230, 45, 99, 310, 7, 8};
  const std::vector<BlockId> blocks{BlockId{3}};
  engine::SamplingParams greedy;
  greedy.temperature = 0;
  engine::SequenceInput input;
  input.tokens = prompt;
  input.blocks = blocks;
  input.output = engine::StepOutput::kSample;
  input.sampling = &greedy;
  input.history = {prompt, prompt.size()};
  TANDEM_ASSIGN(const auto out, started.engine.pooled.step({&input, 1}, {}));
  return out.front().token->id;
}

TEST_F(NodeEngineOnACard, TakesItsShareAndNoMore) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&before, &total));
  const auto started = start(QuantizationChoice::kNone, 0);
  ASSERT_TRUE(started) << started.error().to_string();
  ASSERT_CUDA(cudaMemGetInfo(&after, &total));
  const double share = static_cast<double>(before - after) / static_cast<double>(total);
  EXPECT_LT(share, 0.05);
  EXPECT_GT(share, 0.04);
  EXPECT_TRUE(first_token(*started));
}

TEST_F(NodeEngineOnACard, KeepsProjectionsAsConfigured) {
  constexpr uint64_t kMemory = uint64_t{64} << 20;
  const auto plain = start(QuantizationChoice::kNone, kMemory);
  ASSERT_TRUE(plain) << plain.error().to_string();
  const auto fp8 = start(QuantizationChoice::kFp8, kMemory);
  ASSERT_TRUE(fp8) << fp8.error().to_string();
  EXPECT_EQ(plain->model.blocks, kMemory / plain->model.layout.block_bytes());
  EXPECT_EQ(plain->model.blocks, fp8->model.blocks);
  EXPECT_FALSE(plain->engine.name.ends_with("-fp8")) << plain->engine.name;
  EXPECT_TRUE(fp8->engine.name.ends_with("-fp8")) << fp8->engine.name;
  EXPECT_LT(fp8->engine.weight_bytes, plain->engine.weight_bytes);
  EXPECT_TRUE(first_token(*plain));
  EXPECT_TRUE(first_token(*fp8));
}

}  // namespace
}  // namespace tandem::node
