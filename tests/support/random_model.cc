#include "tests/support/random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/kv/codec.h"
#include "common/model/config.h"

namespace tandem::testing {
namespace {

// ---- shapes ----

// Sizes that kernels like, and as many that they do not.
uint32_t size(Dice& dice, uint32_t least, uint32_t most) {
  const uint32_t unit = dice.of({128U, 64U, 64U, 32U, 16U, 16U, 8U, 8U, 4U, 2U, 1U, 1U});
  const uint32_t value = dice.between(least, most);
  return std::max(least, std::min(most, (value + unit - 1) / unit * unit));
}

struct Shape {
  uint32_t layers = 1;
  uint32_t hidden = 64;
  uint32_t heads = 4;
  uint32_t kv_heads = 4;
  uint32_t head_dim = 16;
  uint32_t intermediate = 64;
  uint32_t vocab = 100;
  uint32_t positions = 64;
  bool tied = false;
  uint32_t experts = 0;
  uint32_t expert_size = 0;
};

// Elements, so that a model is made and run in a fraction of a second.
bool is_small(const Shape& s) {
  const uint64_t q = uint64_t{s.heads} * s.head_dim;
  const uint64_t kv = uint64_t{s.kv_heads} * s.head_dim;
  const uint64_t mlp = 3 * uint64_t{s.hidden} * s.intermediate;
  const uint64_t experts = 3 * uint64_t{s.experts} * s.hidden * s.expert_size;
  const uint64_t layer = s.hidden * (2 * q + 2 * kv) + std::max(mlp, experts);
  const uint64_t table = uint64_t{s.vocab} * s.hidden;
  return q <= 16384 && s.layers * layer <= 6'000'000 && table <= 17'000'000;
}

uint32_t random_head_dim(Dice& dice) {
  if (dice.chance(50)) return dice.of({64U, 96U, 128U, 192U, 256U});
  if (dice.chance(30)) return 2 * dice.between(1, 128);
  return dice.of({8U, 16U, 32U, 40U, 48U, 56U, 72U, 80U, 88U, 104U, 112U, 120U, 144U, 160U, 176U,
                  208U, 224U, 240U});
}

uint32_t random_vocabulary(Dice& dice) {
  if (dice.chance(75)) return size(dice, 33, 2000);
  return dice.of({2U, 3U, 17U, 31U, 32U, 4095U, 4096U, 4097U, 8193U, 16384U, 16385U, 32001U});
}

// One thing in ten models is far from ordinary; all at once would be too much to compute.
void exaggerate(Dice& dice, Shape& s) {
  switch (dice.below(40)) {
    case 0:
      s.layers = 80;
      s.hidden = size(dice, 8, 64);
      s.intermediate = size(dice, 8, 64);
      return;
    case 1:
    case 2:
      s.hidden = size(dice, 8, 42);
      s.vocab = dice.of({50257U, 128256U, 151936U, 256000U, 262145U, 400001U});
      return;
    case 3:
      s.hidden = size(dice, 2048, 8192);
      s.intermediate = size(dice, 1, 64);
      return;
    case 4:
      s.hidden = size(dice, 8, 64);
      s.intermediate = size(dice, 8192, 30000);
      return;
    default:
      return;
  }
}

Shape random_shape(Dice& dice, bool mixture) {
  for (;;) {
    Shape s;
    s.layers = dice.of({1U, 1U, 2U, 2U, 3U, 4U, 7U});
    s.hidden = size(dice, 8, 768);
    s.head_dim = random_head_dim(dice);
    s.kv_heads = dice.of({1U, 1U, 2U, 2U, 3U, 4U, 5U, 7U, 8U, 8U, 16U, 32U});
    s.heads = s.kv_heads * dice.of({1U, 1U, 2U, 3U, 4U, 4U, 5U, 6U, 7U, 8U, 9U, 12U, 16U, 17U, 32U,
                                    64U, 71U, 128U});
    s.intermediate = size(dice, 1, 1024);
    s.vocab = random_vocabulary(dice);
    s.positions = dice.of({7U, 15U, 16U, 17U, 33U, 64U, 100U, 128U, 129U, 200U, 256U, 257U, 300U,
                           400U, 600U, 900U, 1500U, 5000U});
    s.tied = dice.chance(40);
    exaggerate(dice, s);
    if (mixture) {
      s.hidden = (s.hidden + 7) / 8 * 8;
      s.experts = dice.of({1U, 2U, 4U, 5U, 8U, 16U, 33U, 60U, 64U, 128U, 256U, 257U, 300U});
      s.expert_size = (size(dice, 8, 256) + 7) / 8 * 8;
    }
    // What is exaggerated stays: only the rest is drawn again.
    for (int i = 0; i < 50 && !is_small(s); ++i) {
      s.head_dim = random_head_dim(dice);
      s.kv_heads = dice.of({1U, 1U, 2U, 2U, 3U, 4U, 8U});
      s.heads = s.kv_heads * dice.of({1U, 2U, 3U, 4U, 5U, 7U, 8U, 16U, 64U});
      if (s.intermediate > 64 && s.intermediate <= 1024) s.intermediate = size(dice, 1, 512);
      s.experts /= 2;
      if (mixture && s.experts == 0) s.experts = 1;
    }
    if (is_small(s)) return s;
  }
}

const char* text(bool value) { return value ? "true" : "false"; }

std::string random_rope(Dice& dice, const Shape& s) {
  std::ostringstream out;
  out << R"("rope_theta": )" << dice.of({10000, 500000, 1000000});
  const uint32_t original = std::max(1U, s.positions / 4);
  switch (dice.below(8)) {
    case 0:
      out << R"(, "rope_scaling": {"rope_type": "linear", "factor": 2.5})";
      break;
    case 1:
      out << R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0})";
      break;
    case 2:
      out << R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, )"
          << R"("high_freq_factor": 4.0, "original_max_position_embeddings": )" << original << "}";
      break;
    case 3:
      out << R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, )"
          << R"("original_max_position_embeddings": )" << original << "}";
      break;
    default:
      break;
  }
  return out.str();
}

std::string layer_types(Dice& dice, uint32_t layers) {
  std::string out = R"(, "layer_types": [)";
  for (uint32_t i = 0; i < layers; ++i) {
    if (i > 0) out += ", ";
    out += dice.chance(50) ? R"("sliding_attention")" : R"("full_attention")";
  }
  return out + "]";
}

// Windows from a single key to more than the context.
uint32_t window_of(Dice& dice) {
  return dice.of({1U, 2U, 8U, 15U, 16U, 17U, 31U, 40U, 100U, 260U, 5000U});
}

std::string random_windows(Dice& dice, const std::string& type, uint32_t layers) {
  std::ostringstream out;
  if (type == "llama") return {};
  if (type == "mistral") {
    out << R"(, "sliding_window": )"
        << (dice.chance(30) ? "null" : std::to_string(window_of(dice)));
    return out.str();
  }
  if (dice.chance(60)) return {};
  out << R"(, "use_sliding_window": true, "sliding_window": )" << window_of(dice)
      << R"(, "max_window_layers": )" << dice.below(layers);
  if (type != "qwen3_moe" && dice.chance(50)) out << layer_types(dice, layers);
  return out.str();
}

std::string random_mixture(Dice& dice, const Shape& s) {
  std::ostringstream out;
  out << R"(, "num_experts": )" << s.experts << R"(, "num_experts_per_tok": )"
      << dice.between(1, std::min(16U, s.experts)) << R"(, "moe_intermediate_size": )"
      << s.expert_size << R"(, "norm_topk_prob": )" << text(dice.chance(50));
  if (s.layers > 1 && dice.chance(40)) out << R"(, "mlp_only_layers": [)" << dice.below(2) << "]";
  if (s.layers > 1 && dice.chance(20)) out << R"(, "decoder_sparse_step": 2)";
  return out.str();
}

// ---- weights ----

uint64_t mix(uint64_t x) {  // SplitMix64's finalizer (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Scale {
  float mean = 0;
  float deviation = 0;
};

Scale scale_of(const model::ModelConfig& c, const model::TensorSpec& tensor) {
  const std::string_view name = tensor.name;
  const float in = 1.0F / std::sqrt(static_cast<float>(tensor.shape.back()));
  if (name.ends_with("norm.weight")) return {1.0F, 0.1F};
  if (name.ends_with(".bias")) return {0.0F, 0.2F};
  if (name.ends_with("embed_tokens.weight")) return {0.0F, c.tied_head ? in : 0.5F};
  if (name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight")) return {0.0F, 1.25F * in};
  if (name.ends_with("mlp.gate.weight")) return {0.0F, 4.0F * in};
  const float share = 1.0F / std::sqrt(static_cast<float>(c.layers));
  if (name.ends_with("o_proj.weight")) return {0.0F, share * in};
  if (name.ends_with("down_proj.weight")) return {0.0F, 2.0F * share * in};
  return {0.0F, in};
}

// Near enough to a normal distribution: sums of four uniform bytes, whose deviation is 147.8.
void fill(uint64_t stream, const Scale& scale, std::span<Bf16> out) {
  std::array<Bf16, 4 * 255 + 1> values;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = to_bf16(scale.mean + scale.deviation * (static_cast<float>(i) - 510.0F) / 147.8F);
  uint64_t word = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    word = i % 2 == 0 ? mix(stream + (i + 1) * 0x9e3779b97f4a7c15ULL) : word >> 32;
    const size_t sum = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24 & 255);
    out[i] = values[sum];
  }
}

// What float8 e4m3 with a scale for each row holds exactly: values of that format times a power of
// two, the largest of each row the format's.
void keep_eight_bits(std::span<Bf16> values, size_t columns) {
  for (size_t row = 0; row < values.size(); row += columns) {
    float most = 0;
    for (const Bf16 v : values.subspan(row, columns)) most = std::max(most, std::abs(to_float(v)));
    const float scale = std::exp2(std::ceil(std::log2(std::max(most, 1e-9F) / kv::kMaxE4m3)));
    for (Bf16& v : values.subspan(row, columns))
      v = to_bf16(kv::e4m3_to_float(kv::float_to_e4m3(to_float(v) / scale)) * scale);
    values[row] = to_bf16(kv::kMaxE4m3 * scale);
  }
}

}  // namespace

RandomModel random_model(Dice& dice) {
  const std::string type =
      dice.of({std::string("llama"), std::string("mistral"), std::string("qwen2"),
               std::string("qwen3"), std::string("qwen3_moe")});
  Shape s = random_shape(dice, type == "qwen3_moe");
  RandomModel model;
  model.suits_fp8 = type != "qwen3_moe" && dice.chance(20);
  if (model.suits_fp8)
    for (uint32_t* value : {&s.hidden, &s.intermediate, &s.head_dim})
      *value = (*value + 15) / 16 * 16;
  std::ostringstream out;
  out << R"({"model_type": ")" << type << R"(", "num_hidden_layers": )" << s.layers
      << R"(, "hidden_size": )" << s.hidden << R"(, "num_attention_heads": )" << s.heads
      << R"(, "num_key_value_heads": )" << s.kv_heads << R"(, "head_dim": )" << s.head_dim
      << R"(, "intermediate_size": )" << s.intermediate << R"(, "vocab_size": )" << s.vocab
      << R"(, "max_position_embeddings": )" << s.positions << R"(, "tie_word_embeddings": )"
      << text(s.tied) << R"(, "rms_norm_eps": )" << dice.of({"1e-6", "1e-6", "1e-5"})
      << R"(, "torch_dtype": "bfloat16")"
      << R"(, "bos_token_id": null, "eos_token_id": null)";
  if (type != "mistral" && type != "qwen2")
    out << R"(, "attention_bias": )" << text(dice.chance(40));
  if (type == "llama") out << R"(, "mlp_bias": )" << text(dice.chance(40));
  out << ", " << random_rope(dice, s) << random_windows(dice, type, s.layers);
  if (type == "qwen3_moe") out << random_mixture(dice, s);
  out << "}";
  model.config = out.str();
  return model;
}

void write_random_model(const TempFolder& folder, const RandomModel& model, uint64_t seed) {
  const auto parsed = model::parse_config(model.config, "config.json");
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  folder.write("config.json", model.config);
  const std::vector<model::TensorSpec> tensors = model::expected_tensors(*parsed);
  std::ostringstream header;
  size_t at = 0;
  for (const model::TensorSpec& t : tensors) {
    header << (at == 0 ? "{" : ",") << '"' << t.name << R"(":{"dtype":"BF16","shape":[)";
    size_t elements = 1;
    for (size_t i = 0; i < t.shape.size(); ++i) {
      header << (i == 0 ? "" : ",") << t.shape[i];
      elements *= static_cast<size_t>(t.shape[i]);
    }
    header << R"(],"data_offsets":[)" << at << ',' << at + elements * sizeof(Bf16) << "]}";
    at += elements * sizeof(Bf16);
  }
  header << '}';
  std::string head = header.str();
  head.resize((head.size() + 7) / 8 * 8, ' ');
  std::ofstream file(folder.path() / "model.safetensors", std::ios::binary);
  static_assert(std::endian::native == std::endian::little);
  const uint64_t length = head.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(head.data(), static_cast<std::streamsize>(head.size()));
  std::vector<Bf16> values;
  for (const model::TensorSpec& t : tensors) {
    size_t elements = 1;
    for (const int64_t n : t.shape) elements *= static_cast<size_t>(n);
    values.resize(elements);
    uint64_t stream = mix(seed + 0x9e3779b97f4a7c15ULL);
    for (const char c : t.name) stream = mix(stream ^ static_cast<unsigned char>(c));
    fill(stream, scale_of(*parsed, t), values);
    if (model.suits_fp8 && t.name.ends_with("_proj.weight"))
      keep_eight_bits(values, static_cast<size_t>(t.shape.back()));
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(Bf16)));
  }
  ASSERT_TRUE(file.good());
}

}  // namespace tandem::testing
