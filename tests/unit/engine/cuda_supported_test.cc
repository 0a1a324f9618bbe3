// Models that the CUDA engine does not run are refused by name, before a card is looked for.
#include <gtest/gtest.h>

#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/cuda/supported_model.h"

namespace tandem::engine {
namespace {

model::ModelConfig dense() {
  model::ModelConfig m;
  m.layers = 2;
  m.hidden = 3584;
  m.heads = 28;
  m.kv_heads = 4;
  m.head_dim = 128;
  m.intermediate = 18944;
  m.vocab = 1000;
  m.max_positions = 64;
  m.windows.assign(2, 0);
  return m;
}

model::ModelConfig mixture() {
  model::ModelConfig m = dense();
  m.moe = {.experts = 128, .experts_per_token = 8, .intermediate = 768};
  m.moe_layers.assign(2, true);
  return m;
}

struct Refusal {
  const char* field;
  model::ModelConfig model;
  CudaOptions options;
  std::vector<std::string> parts;  // of the message
};

std::vector<Refusal> refusals() {
  std::vector<Refusal> out;
  const auto add = [&](const char* field, model::ModelConfig model, auto&& change,
                       std::vector<std::string> parts) {
    Refusal r{field, std::move(model), {}, std::move(parts)};
    change(r.model, r.options);
    out.push_back(std::move(r));
  };
  using M = model::ModelConfig;
  using O = CudaOptions;
  add("head_dim", dense(), [](M& m, O&) { m.head_dim = 258; }, {"258", "at most 256"});
  add("num_attention_heads", dense(), [](M& m, O&) { m.heads = 4100; }, {"4100", "at most 4096"});
  add("num_experts", mixture(), [](M& m, O&) { m.moe.experts = 1025; }, {"1025", "at most 1024"});
  add("num_experts_per_tok", mixture(), [](M& m, O&) { m.moe.experts_per_token = 33; },
      {"33", "at most 32"});
  add("hidden_size", mixture(), [](M& m, O&) { m.hidden = 3580; }, {"3580", "multiples of 8"});
  add("hidden_size", mixture(), [](M& m, O&) { m.hidden = 25608; }, {"25608", "at most 25600"});
  add("moe_intermediate_size", mixture(), [](M& m, O&) { m.moe.intermediate = 764; },
      {"764", "multiples of 8"});
  add("moe_intermediate_size", mixture(), [](M& m, O&) { m.moe.intermediate = (1 << 20) + 8; },
      {"1048584", "at most 1048576"});
  add("max_batch_tokens", dense(), [](M&, O& o) { o.max_rows = 262145; }, {"262145", "262144"});
  add("kv.format", dense(),
      [](M& m, O& o) {
        o.kv_layout = kv::KvLayout{m.layers, m.kv_heads, m.head_dim, kv::KvFormat::kF32};
      },
      {"f32", "bf16"});
  add("quantization", dense(),
      [](M& m, O& o) {
        m.intermediate = 1000;
        o.quantization = Quantization::kFp8;
      },
      {"1000", "multiples of 16"});
  add("quantization", mixture(), [](M&, O& o) { o.quantization = Quantization::kFp8; },
      {"mixture of experts"});
  return out;
}

TEST(SupportedModel, RefusesByNameBeforeACardIsOpened) {
  for (const Refusal& r : refusals()) {
    CudaOptions options = r.options;
    options.device = 999;  // not there, and not what the error is about
    const auto ops = create_cuda_ops(options, r.model);
    ASSERT_FALSE(ops) << r.field;
    EXPECT_EQ(ops.error().code, ErrorCode::kUnsupported) << ops.error().to_string();
    EXPECT_EQ(ops.error().param, r.field);
    for (const std::string& part : r.parts)
      EXPECT_NE(ops.error().detail.find(part), std::string::npos) << ops.error().detail;
  }
}

TEST(SupportedModel, TakesTheLargestOfEverything) {
  model::ModelConfig m = dense();
  m.head_dim = 256;
  m.heads = 4096;
  m.kv_heads = 1;
  m.hidden = 3581;  // dense models may have any size
  m.intermediate = 1001;
  CudaOptions options;
  options.max_rows = 262144;
  EXPECT_TRUE(check_supported(options, m));
  m = mixture();
  m.hidden = 25600;
  m.moe = {.experts = 1024, .experts_per_token = 32, .intermediate = 8};
  EXPECT_TRUE(check_supported(options, m));
}

}  // namespace
}  // namespace tandem::engine
