// A node's engine as its configuration asks for it, with all of a card's memory planned ahead.
#include "common/node/node_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

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

// A sequence of a step and what its input refers to.
class Sequence {
 public:
  Sequence(std::vector<TokenId> prompt, std::vector<uint32_t> blocks) : tokens_(std::move(prompt)) {
    for (const uint32_t block : blocks) blocks_.push_back(BlockId{block});
    sampling_.temperature = 0;
  }
  [[nodiscard]] engine::SamplingParams& sampling() { return sampling_; }

  // The tokens whose keys are not yet in its pages.
  [[nodiscard]] engine::SequenceInput input() const {
    engine::SequenceInput input;
    input.tokens = std::span(tokens_).subspan(done_);
    input.start = done_;
    input.blocks = blocks_;
    input.output = engine::StepOutput::kSample;
    input.sampling = &sampling_;
    input.history = {tokens_, prompt_};
    return input;
  }
  void append(TokenId token) {
    done_ = static_cast<uint32_t>(tokens_.size());
    tokens_.push_back(token);
  }

 private:
  std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
  engine::SamplingParams sampling_;
  size_t prompt_ = tokens_.size();
  uint32_t done_ = 0;
};

// Runs one step over all of them and appends what it gave. Returns its seconds.
Result<double> step(const Started& started, std::span<Sequence* const> sequences) {
  std::vector<engine::SequenceInput> inputs;
  inputs.reserve(sequences.size());
  for (const Sequence* sequence : sequences) inputs.push_back(sequence->input());
  const SteadyClock clock;
  const auto begin = clock.now();
  TANDEM_ASSIGN(const auto out, started.engine.pooled.step(inputs, {}));
  const std::chrono::duration<double> seconds = clock.now() - begin;
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i]->append(out[i].token->id);
  return seconds.count();
}

std::vector<TokenId> prompt_of(size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<TokenId>(1 + i * 37 % 900);
  return prompt;
}

bool answers(const Started& started) {
  Sequence sequence(prompt_of(8), {3});
  Sequence* const all[] = {&sequence};
  return step(started, all).has_value();
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
  EXPECT_TRUE(answers(*started));
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
  EXPECT_TRUE(answers(*plain));
  EXPECT_TRUE(answers(*fp8));
}

// Prompts, decoding with every parameter of the sampler, and both in one step.
TEST_F(NodeEngineOnACard, TakesNoMemoryAndLosesNoTimeToFirstUsesWhileItServes) {
  const auto started = start(QuantizationChoice::kNone, uint64_t{64} << 20);
  ASSERT_TRUE(started) << started.error().to_string();
  size_t before = 0, after = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&before, &total));
  std::vector<double> seconds;
  for (uint32_t round = 0; round < 9; ++round) {
    const uint32_t block = 32 * round;
    Sequence first(prompt_of(40), {block, block + 1, block + 2, block + 3});
    Sequence second(prompt_of(100), {block + 8, block + 9, block + 10, block + 11, block + 12,
                                     block + 13, block + 14});
    engine::SamplingParams& sampling = second.sampling();
    sampling.temperature = 0.8F;
    sampling.top_k = 20;
    sampling.top_p = 0.9F;
    sampling.repetition_penalty = 1.2F;
    sampling.seed = 7;
    Sequence* const one[] = {&first};
    Sequence* const both[] = {&first, &second};
    double sum = 0;
    for (const std::span<Sequence* const> who :
         {std::span<Sequence* const>(one), std::span<Sequence* const>(one),
          std::span<Sequence* const>(both), std::span<Sequence* const>(both)}) {
      const auto took = step(*started, who);
      ASSERT_TRUE(took) << took.error().to_string();
      sum += *took;
    }
    seconds.push_back(sum);
  }
  ASSERT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
  const double first = seconds.front();
  std::ranges::sort(seconds);
  std::printf("four steps: first time %.2f ms, median %.2f ms\n", first * 1e3, seconds[4] * 1e3);
  EXPECT_LT(first, seconds[4] + 5e-3);
}

}  // namespace
}  // namespace tandem::node
