// What a CUDA engine takes of its card, planned before anything is loaded: no card needed.
#include <gtest/gtest.h>

#include "common/engine/cuda/attention_layout.h"
#include "common/engine/cuda/engine_limits.h"

namespace tandem::engine {
namespace {

model::ModelConfig qwen2_7b() {
  model::ModelConfig m;
  m.architecture = model::Architecture::kQwen2;
  m.layers = 28;
  m.hidden = 3584;
  m.heads = 28;
  m.kv_heads = 4;
  m.head_dim = 128;
  m.intermediate = 18944;
  m.vocab = 152064;
  m.max_positions = 32768;
  m.qkv_bias = true;
  m.windows.assign(28, 0);
  return m;
}

kv::KvLayout layout_of(const model::ModelConfig& m, kv::KvFormat format) {
  return {.layers = m.layers, .kv_heads = m.kv_heads, .head_dim = m.head_dim, .format = format};
}

cuda::DeviceInfo h200() {
  cuda::DeviceInfo d;
  d.name = "NVIDIA H200";
  d.major = 9;
  d.multiprocessors = 132;
  d.l2_bytes = size_t{60} << 20;
  return d;
}

uint64_t bytes_of(const std::vector<cuda::MemoryPart>& parts, const std::string& name) {
  for (const auto& part : parts)
    if (part.name == name) return part.bytes;
  ADD_FAILURE() << "no part " << name;
  return 0;
}

TEST(Footprint, CountsTheWeightsOfAPublishedModel) {
  const auto model = qwen2_7b();
  CudaOptions options;
  options.max_rows = 2048;
  const auto layout = layout_of(model, kv::KvFormat::kBf16);
  auto parts = footprint(options, model, {options, model, layout, h200()});
  // 7,615,616,512 parameters (the model card); 57 norms of 3584 are float32.
  EXPECT_EQ(bytes_of(parts, "weights"), 2 * 7'615'616'512 + 2 * 57 * 3584);
  // A row: residual 4 bytes x 3584; bf16: qkv 4608, attention 3584, inner 18944.
  EXPECT_EQ(bytes_of(parts, "activations"), 2048U * (4 * 3584 + 2 * (4608 + 3584 + 18944)));
  EXPECT_EQ(bytes_of(parts, "logits"), 128U * 152064 * 4);

  options.quantization = Quantization::kFp8;
  parts = footprint(options, model, {options, model, layout, h200()});
  // By hand: projections one byte each and a scale an output; embedding, head and biases bf16.
  const uint64_t projections = 28 * (2ULL * 3584 * 3584 + 2ULL * 512 * 3584 + 3ULL * 18944 * 3584);
  const uint64_t scales = 28 * 4ULL * (3 * 3584 + 2 * 512 + 2 * 18944);
  EXPECT_EQ(bytes_of(parts, "weights"),
            projections + scales + 4ULL * 152064 * 3584 + 28 * 2ULL * 4608 + 57 * 4ULL * 3584);
}

TEST(Footprint, WorkspaceGrowsWithWhatIsAskedFor) {
  const auto model = qwen2_7b();
  const auto layout = layout_of(model, kv::KvFormat::kBf16);
  const auto workspace = [&](uint32_t rows, uint32_t context, uint32_t sequences) {
    CudaOptions options;
    options.max_rows = rows;
    options.max_context = context;
    options.max_sequences = sequences;
    return bytes_of(footprint(options, model, {options, model, layout, h200()}), "workspace");
  };
  const uint64_t base = workspace(2048, 8192, 64);
  // Gathered keys and values of 24576 more positions of 1 KiB each, and the histories.
  EXPECT_GE(workspace(2048, 32768, 64) - base, 2ULL * 24576 * 1024);
  EXPECT_GT(workspace(2048, 8192, 256), base);
  // Normed rows of 3584, not of the longest input, 18944; gate | up stays at 2048 rows.
  const uint64_t more_rows = workspace(8192, 8192, 64) - base;
  EXPECT_GE(more_rows, 6144ULL * 3584 * 2);
  EXPECT_LT(more_rows, 6144ULL * 18944 * 2);
}

TEST(Footprint, VerificationTakesMemoryWhenItIsAskedFor) {
  const auto model = qwen2_7b();
  const auto layout = layout_of(model, kv::KvFormat::kInt4);
  const auto limits = [&](uint32_t each, uint32_t sequences) {
    CudaOptions options;
    options.max_verify_rows = each;
    options.max_sequences = sequences;
    options.max_context = 4096;
    return EngineLimits(options, model, layout, h200());
  };
  EXPECT_EQ(limits(1, 64).few.each, 1U);
  EXPECT_EQ(limits(0, 64).few.each, 1U);
  EXPECT_EQ(limits(99, 64).few.each, 16U);
  EXPECT_EQ(limits(8, 4).few.together, 32U);
  EXPECT_EQ(limits(8, 64).few.together, 128U);
  EXPECT_EQ(limits(8, 200).few.together, 200U);
  const auto bytes = [&](uint32_t each) {
    return AttentionLayout(limits(each, 64).attention).bytes;
  };
  EXPECT_EQ(bytes(0), bytes(1));
  EXPECT_GT(bytes(8), bytes(1));
  // Every step that may come fits: a sequence alone, and as many rows as there may be together.
  const AttentionLimits attention = limits(16, 64).attention;
  const AttentionLayout l(attention);
  const cuda::DecodeShape shape = decode_shape(attention, 0);
  for (const uint32_t sequences : {1U, 3U, 8U, 16U, 17U, 64U})
    for (const uint32_t start : {0U, 13U, 1000U, 4080U}) {
      cuda::SequenceSlot slot;
      slot.rows = std::min(16U, attention.few.together / sequences);
      slot.start = start;
      cuda::DecodePlan plan;
      cuda::plan_decode(shape, std::vector(sequences, slot), 264, plan);
      EXPECT_LE(plan.units.size(), l.units) << sequences << " from " << start;
    }
}

// Rows in the middle of a page, and spans that end with a whole tile of padding.
TEST(AttentionLayout, HasRoomForTheWorstStepOfShortPrompts) {
  AttentionLimits limits;
  limits.heads = 28;
  limits.layout = layout_of(qwen2_7b(), kv::KvFormat::kInt4);
  limits.windows = {0};
  limits.max_context = 4096;
  limits.blocks = 132;
  for (const uint32_t sequences : {1U, 2U, 9U, 32U, 200U}) {
    limits.max_sequences = sequences;
    limits.max_rows = 114 * sequences;
    const uint32_t span = cuda::prefill_span(15 + 114);  // of each
    EXPECT_GE(AttentionLayout(limits).exact_positions, span * sequences) << sequences;
  }
}

TEST(EngineLimits, SequencesAreNotVerifiedPastTheContext) {
  auto model = qwen2_7b();
  model.max_positions = 7;
  CudaOptions options;
  options.max_verify_rows = 16;
  EXPECT_EQ(EngineLimits(options, model, layout_of(model, kv::KvFormat::kBf16), h200()).few.each,
            7U);
}

TEST(AttentionLayout, PartsLieOneBehindTheOther) {
  for (const kv::KvFormat format : {kv::KvFormat::kBf16, kv::KvFormat::kInt4}) {
    AttentionLimits limits;
    limits.heads = 28;
    limits.layout = layout_of(qwen2_7b(), format);
    limits.windows = {0, 4096};
    limits.max_rows = 512;
    limits.max_context = 4096;
    limits.max_sequences = 32;
    limits.blocks = 132;
    limits.l2_bytes = size_t{60} << 20;
    const AttentionLayout l(limits);
    ASSERT_EQ(l.plans.size(), 2U);
    std::vector<size_t> starts{l.plans[0], l.plans[1], l.partials, l.counters,
                               l.prefill,  l.keys,     l.values};
    if (limits.layout.needs_tail()) {
      starts.insert(starts.end(), {l.exact_keys, l.exact_values, l.kept});
      EXPECT_GT(l.exact_positions, limits.max_rows);
    }
    starts.push_back(l.bytes);
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      EXPECT_EQ(starts[i] % 256, 0U);
      EXPECT_LT(starts[i], starts[i + 1]) << i;
    }
    EXPECT_GE(l.plans[1] - l.plans[0], l.plan_bytes);
    EXPECT_GE(l.values - l.keys, size_t{l.positions} * 4 * 128 * 2);
    EXPECT_GE(l.positions, limits.max_context);
  }
}

}  // namespace
}  // namespace tandem::engine
