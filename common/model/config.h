#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/base/result.h"

namespace tandem::model {

enum class Architecture : uint8_t { kLlama, kMistral, kQwen2, kQwen3, kQwen3Moe };
[[nodiscard]] std::string_view to_string(Architecture a);  // as config.json's `model_type`

// Which formula turns rope theta into per-pair frequencies; common/engine/rope.h holds the
// formulas.
enum class RopeType : uint8_t {
  kDefault,
  kLinear,
  kDynamic,  // equal to kDefault up to original_max_positions, and the context ends there
  kLlama3,
  kYarn,
};
[[nodiscard]] std::string_view to_string(RopeType t);

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;
  uint32_t original_max_positions = 0;  // llama3, yarn, dynamic
  double low_freq_factor = 1;           // llama3
  double high_freq_factor = 4;
  double beta_fast = 32;  // yarn
  double beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  // Set from a GGUF file's rope_freqs.weight: pair i's frequency is divided by entry i, after
  // `type`.
  std::vector<float> frequency_divisors;
};

struct MoeConfig {
  uint32_t experts = 0;  // 0: a dense model
  uint32_t experts_per_token = 0;
  uint32_t intermediate = 0;  // of one expert
  bool normalize_top_k = false;
};

// What the forward pass needs to know of a model, whatever file it came from.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  uint32_t layers = 0;
  uint32_t hidden = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t intermediate = 0;
  uint32_t vocab = 0;
  uint32_t max_positions = 0;  // the context
  float norm_eps = 1e-6F;
  bool tied_head = false;  // the head is the embedding table
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  RopeConfig rope;
  // Per layer: keys visible to a query, itself included; 0: all earlier ones.
  std::vector<uint32_t> windows;
  // Per layer: whether its MLP is the mixture. Empty for a dense model.
  std::vector<bool> moe_layers;
  MoeConfig moe;
  // A token of this list ends generation. May be empty.
  std::vector<TokenId> eos;
  std::optional<TokenId> bos;
  // As the checkpoint says; weights may mix types.
  DType dtype = DType::kBf16;
  // What was odd but harmless in the source, for the log.
  std::vector<std::string> notes;

  [[nodiscard]] bool is_moe_layer(uint32_t layer) const {
    return layer < moe_layers.size() && moe_layers[layer];
  }
  // Every field that changes the mathematics, in a fixed order: input of the fingerprint.
  [[nodiscard]] std::string canonical() const;
  // "llama, 30 layers, hidden 576, 9/3 heads of 64, context 8192, vocabulary 49152"
  [[nodiscard]] std::string describe() const;
};

// Parses the text of config.json (transformers 4 or 5) and of generation_config.json, if there is
// one. `file` and `generation_file` name them in errors. Fields that would change the mathematics
// and are not implemented are refused by name (kUnsupported); contradictions are kCorruptData.
[[nodiscard]] Result<ModelConfig> parse_config(std::string_view config_json, std::string_view file,
                                               std::optional<std::string_view> generation_json = {},
                                               std::string_view generation_file = {});

// Checks that dims are non-zero, within bounds and consistent; parse_config has done it.
[[nodiscard]] Status validate(const ModelConfig& config, std::string_view file);
// Token ids outside the vocabulary can never be produced: drops them from eos and bos, with a note.
void drop_foreign_ids(ModelConfig& config, std::string_view file);

// A tensor that a model of this config must have, under its Hugging Face name.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};
// Every tensor of the model, in the order of use.
[[nodiscard]] std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

}  // namespace tandem::model
