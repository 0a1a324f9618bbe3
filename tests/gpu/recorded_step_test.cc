// What a recorded decode step consists of, counted on the graph itself.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/engine/cuda/cuda_ops_impl.h"
#include "common/engine/engine.h"
#include "common/model/checkpoint.h"
#include "tests/gpu/card.h"
#include "tests/support/temp_folder.h"

namespace tandem::engine {
namespace {

using testing::TempFolder;
using RecordedStep = cuda::CardTest;

struct Dense {
  const char* type;  // model_type
  const char* architecture;
};

std::string config_of(const Dense& dense, uint32_t layers) {
  return std::string(R"({"architectures": [")") + dense.architecture + R"("], "model_type": ")" +
         dense.type + R"(", "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 512,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
 "max_position_embeddings": 1024, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "num_hidden_layers": )" +
         std::to_string(layers) + "}";
}

struct Rows {
  uint32_t count;
  bool verified;   // eight of a sequence
  size_t kernels;  // of a layer
};

// Up to 8 rows the projections norm their rows themselves. Two more kernels do that for
// linear_batch(), and a step that verifies writes KV in one of its own (ADR 0013). Above 32 rows
// cuBLASLt multiplies, SiLU is a kernel as well, and what the library takes for a product is its
// choice: not counted.
constexpr Rows kRows[] = {{1, false, 5},  {2, false, 5},  {4, false, 5}, {8, false, 5},
                          {16, false, 7}, {32, false, 7}, {8, true, 6}};

// Nodes of the steps of kRows.
std::vector<size_t> nodes_of(const Dense& dense, uint32_t layers, kv::KvFormat format,
                             Quantization quantization) {
  const TempFolder folder;
  folder.write("config.json", config_of(dense, layers));
  const auto checkpoint =
      model::Checkpoint::open(folder.path(), {.format = model::LoadFormat::kDummy});
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  if (!checkpoint) return {};
  const model::ModelConfig& config = (*checkpoint)->config();
  CudaOptions options;
  options.max_rows = 128;
  options.max_context = 256;
  options.max_sequences = 32;
  options.max_verify_rows = 8;
  options.quantization = quantization;
  const kv::KvLayout layout{config.layers, config.kv_heads, config.head_dim, format};
  auto created = create_cuda_ops(options, config);
  EXPECT_TRUE(created) << created.error().to_string();
  if (!created) return {};
  auto& ops = static_cast<CudaOps&>(**created);
  const auto engine = Engine::create(**checkpoint, ops, {options.max_rows, options.max_context});
  EXPECT_TRUE(engine) << engine.error().to_string();
  if (!engine) return {};
  KvPages pages;
  pages.layout = layout;
  pages.blocks = 64;
  pages.tails = layout.needs_tail() ? options.max_sequences : 0;
  const auto memory = ops.create_kv_memory(layout, pages.blocks, pages.tails);
  EXPECT_TRUE(memory) << memory.error().to_string();
  if (!memory) return {};
  pages.pages = (*memory)->pages();
  pages.tail = (*memory)->tails();
  const Status prepared = (*engine)->prepare(pages, options.max_sequences);
  EXPECT_TRUE(prepared) << prepared.error().to_string();
  std::vector<size_t> nodes;
  for (const Rows& rows : kRows) nodes.push_back(ops.recorded_nodes(rows.count, rows.verified));
  return nodes;
}

TEST_F(RecordedStep, ALayerIsAtMostSoManyKernels) {
  for (const Dense& dense : {Dense{"qwen2", "Qwen2ForCausalLM"}, Dense{"qwen3", "Qwen3ForCausalLM"},
                             Dense{"llama", "LlamaForCausalLM"}})
    for (const kv::KvFormat format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4})
      for (const Quantization quantization : {Quantization::kNone, Quantization::kFp8}) {
        if (quantization == Quantization::kFp8 && format != kv::KvFormat::kBf16) continue;
        const auto two = nodes_of(dense, 2, format, quantization);
        const auto five = nodes_of(dense, 5, format, quantization);
        ASSERT_EQ(two.size(), std::size(kRows));
        ASSERT_EQ(five.size(), std::size(kRows));
        for (size_t i = 0; i < two.size(); ++i) {
          SCOPED_TRACE(std::string(dense.type) + ", " + std::string(kv::to_string(format)) +
                       (quantization == Quantization::kFp8 ? ", fp8, " : ", ") +
                       std::to_string(kRows[i].count) + " rows");
          ASSERT_GT(two[i], 0u);
          EXPECT_EQ(five[i] - two[i], 3 * kRows[i].kernels);
          // Embedding, norm, head, sampling.
          EXPECT_LE(two[i], 2 * kRows[i].kernels + 4);
        }
      }
}

}  // namespace
}  // namespace tandem::engine
