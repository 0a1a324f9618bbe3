#include "common/model/gguf_model.h"

#include <algorithm>
#include <charconv>

#include "common/model/config_rope.h"

namespace tandem::model {
namespace {

constexpr uint32_t kMost = 1u << 30;

// One "<architecture>.<key>" namespace.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(architecture) {
    prefix_ += '.';
  }
  [[nodiscard]] std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  [[nodiscard]] Result<std::optional<uint32_t>> u32(std::string_view key) const {
    return file_.u32(full(key), 0, kMost);
  }
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const {
    return file_.number(full(key));
  }
  [[nodiscard]] Result<std::optional<std::string_view>> string(std::string_view key) const {
    return file_.string(full(key));
  }
  [[nodiscard]] Status require(std::string_view key, uint32_t& out) const {
    TANDEM_ASSIGN(const auto v, u32(key));
    if (!v) return fail(file_.error(ErrorCode::kCorruptData, full(key), "is missing"));
    out = *v;
    return {};
  }
  // A number, or an array that repeats one number for every layer.
  [[nodiscard]] Result<std::optional<uint32_t>> per_layer(std::string_view key) const {
    const GgufValue* v = file_.find(full(key));
    if (v == nullptr || v->type != GgufType::kArray) return u32(key);
    TANDEM_ASSIGN(const auto found, file_.integers(full(key)));
    const std::vector<int64_t> values = found ? *found : std::vector<int64_t>{};
    if (values.empty() || values[0] < 0 || values[0] > kMost)
      return fail(error(ErrorCode::kCorruptData, key, "must hold a number per layer"));
    if (std::count(values.begin(), values.end(), values[0]) != std::ssize(values))
      return fail(
          error(ErrorCode::kUnsupported, key, "differs between layers, which is not implemented"));
    return static_cast<uint32_t>(values[0]);
  }
  [[nodiscard]] Error error(ErrorCode code, std::string_view key, std::string_view what) const {
    return file_.error(code, full(key), what);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

struct GgufFamily {
  std::string_view name;
  Architecture architecture;
};
constexpr GgufFamily kGgufFamilies[] = {{"llama", Architecture::kLlama},
                                        {"qwen2", Architecture::kQwen2},
                                        {"qwen3", Architecture::kQwen3},
                                        {"qwen3moe", Architecture::kQwen3Moe}};

Status read_dims(const GgufFile& file, const Keys& keys, const GgufTensors& tensors,
                 ModelConfig& c) {
  TANDEM_TRY(keys.require("block_count", c.layers));
  TANDEM_TRY(keys.require("embedding_length", c.hidden));
  TANDEM_TRY(keys.require("context_length", c.max_positions));
  TANDEM_ASSIGN(const auto intermediate, keys.per_layer("feed_forward_length"));
  if (!intermediate && c.architecture != Architecture::kQwen3Moe)
    return fail(keys.error(ErrorCode::kCorruptData, "feed_forward_length", "is missing"));
  c.intermediate = intermediate.value_or(1);
  TANDEM_ASSIGN(const auto heads, keys.per_layer("attention.head_count"));
  if (!heads)
    return fail(keys.error(ErrorCode::kCorruptData, "attention.head_count", "is missing"));
  c.heads = *heads;
  TANDEM_ASSIGN(const auto kv_heads, keys.per_layer("attention.head_count_kv"));
  c.kv_heads = kv_heads.value_or(c.heads);
  TANDEM_ASSIGN(const auto key_length, keys.u32("attention.key_length"));
  TANDEM_ASSIGN(const auto value_length, keys.u32("attention.value_length"));
  if (c.heads == 0)
    return fail(keys.error(ErrorCode::kCorruptData, "attention.head_count", "must not be 0"));
  c.head_dim = key_length.value_or(c.hidden / c.heads);
  if (value_length.value_or(c.head_dim) != c.head_dim)
    return fail(keys.error(ErrorCode::kUnsupported, "attention.value_length",
                           "differs from the key length, which is not implemented"));
  TANDEM_ASSIGN(const auto eps, keys.number("attention.layer_norm_rms_epsilon"));
  if (!eps)
    return fail(
        keys.error(ErrorCode::kCorruptData, "attention.layer_norm_rms_epsilon", "is missing"));
  c.norm_eps = static_cast<float>(*eps);
  // The table's size is the truth: some writers leave vocab_size out or pad the table.
  const auto table = tensors.find("token_embd.weight");
  TANDEM_ASSIGN(const auto vocab, keys.u32("vocab_size"));
  if (table != tensors.end() && table->second->shape.size() == 2 &&
      table->second->shape[0] <= kMost)
    c.vocab = static_cast<uint32_t>(table->second->shape[0]);
  else
    c.vocab = vocab.value_or(static_cast<uint32_t>(
        std::min<uint64_t>(file.array_count("tokenizer.ggml.tokens"), kMost)));
  return {};
}

Status read_rope(const GgufFile& file, const Keys& keys, ModelConfig& c) {
  RopeConfig& rope = c.rope;
  TANDEM_ASSIGN(const auto theta, keys.number("rope.freq_base"));
  rope.theta = theta.value_or(10000.0);
  TANDEM_ASSIGN(const auto rotary, keys.u32("rope.dimension_count"));
  if (rotary && *rotary != c.head_dim)
    return fail(keys.error(ErrorCode::kUnsupported, "rope.dimension_count",
                           "is " + std::to_string(*rotary) + ", not the head size " +
                               std::to_string(c.head_dim) +
                               "; rotating part of a head is not implemented"));
  TANDEM_ASSIGN(const auto type, keys.string("rope.scaling.type"));
  TANDEM_ASSIGN(const auto factor, keys.number("rope.scaling.factor"));
  TANDEM_ASSIGN(const auto old_linear, keys.number("rope.scale_linear"));
  if (!type && old_linear && *old_linear != 1) {
    rope.type = RopeType::kLinear;
    rope.factor = *old_linear;
  }
  if (type && *type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = factor.value_or(1.0);
  } else if (type && *type == "yarn") {
    rope.type = RopeType::kYarn;
    rope.factor = factor.value_or(1.0);
    TANDEM_ASSIGN(const auto original, keys.u32("rope.scaling.original_context_length"));
    rope.original_max_positions = original.value_or(c.max_positions);
    TANDEM_ASSIGN(const auto fast, keys.number("rope.scaling.yarn_beta_fast"));
    TANDEM_ASSIGN(const auto slow, keys.number("rope.scaling.yarn_beta_slow"));
    rope.beta_fast = fast.value_or(32.0);
    rope.beta_slow = slow.value_or(1.0);
    for (const std::string_view key :
         {"rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor",
          "rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor"}) {
      TANDEM_ASSIGN(const auto v, keys.number(key));
      const double neutral = key.ends_with("log_multiplier") ? 0.0 : 1.0;
      if (v && *v != neutral)
        return fail(keys.error(ErrorCode::kUnsupported, key, "is not implemented"));
    }
  } else if (type && *type != "none") {
    return fail(keys.error(
        ErrorCode::kUnsupported, "rope.scaling.type",
        "\"" + std::string(*type) +
            "\" is a rope kind that is not implemented; known are none, linear and yarn"));
  }
  return validate_rope(rope, file.name() + ": " + keys.full("rope"));
}

// rope_freqs.weight holds llama3's scaling as one divisor per rotated pair.
Status read_rope_freqs(const GgufFile& file, const GgufTensors& tensors, ModelConfig& c) {
  const auto it = tensors.find("rope_freqs.weight");
  if (it == tensors.end()) return {};
  const GgufTensor& t = *it->second;
  const int64_t want = c.head_dim / 2;
  if (t.type != StorageType::kF32 || t.shape != std::vector<int64_t>{want})
    return fail(ErrorCode::kMismatch, file.name() + ": tensor rope_freqs.weight must be F32 of [" +
                                          std::to_string(want) + "], half a head");
  HostTensor view;
  view.type = *t.type;
  view.shape = t.shape;
  view.bytes = t.bytes;
  c.rope.frequency_divisors.resize(static_cast<size_t>(want));
  read_row(view, 0, c.rope.frequency_divisors);
  for (const float d : c.rope.frequency_divisors)
    if (!(d > 0) || !(d < 1e9F))
      return fail(ErrorCode::kCorruptData,
                  file.name() + ": tensor rope_freqs.weight must hold divisors above 0");
  return {};
}

Status read_windows(const Keys& keys, ModelConfig& c) {
  c.windows.assign(c.layers, 0);
  TANDEM_ASSIGN(const auto window, keys.u32("attention.sliding_window"));
  if (!window || *window == 0 || *window >= c.max_positions) return {};
  if (c.architecture != Architecture::kLlama)
    return fail(
        keys.error(ErrorCode::kUnsupported, "attention.sliding_window",
                   "does not say which layers it is for; not implemented for this architecture"));
  c.windows.assign(c.layers, *window);
  return {};
}

// In any layer: one that lacks it is then named as incomplete, and not computed without.
bool has_any(const GgufTensors& tensors, uint32_t layers,
             std::initializer_list<std::string_view> names) {
  for (uint32_t i = 0; i < layers; ++i)
    for (const std::string_view name : names)
      if (tensors.contains("blk." + std::to_string(i) + "." + std::string(name))) return true;
  return false;
}

void read_biases(const GgufTensors& tensors, ModelConfig& c) {
  c.qkv_bias = has_any(tensors, c.layers, {"attn_q.bias", "attn_k.bias", "attn_v.bias"});
  c.o_bias = has_any(tensors, c.layers, {"attn_output.bias"});
  c.mlp_bias = has_any(tensors, c.layers, {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"});
}

// A model cut short would answer too, only wrongly.
Status check_layers(const Keys& keys, const GgufTensors& tensors, const ModelConfig& c) {
  const std::string beyond = "blk." + std::to_string(c.layers) + ".";
  for (const auto& [name, tensor] : tensors)
    if (std::string_view(name).starts_with(beyond))
      return fail(keys.error(
          ErrorCode::kCorruptData, "block_count",
          "is " + std::to_string(c.layers) + ", but there is a tensor " + std::string(name)));
  return {};
}

Status read_moe(const Keys& keys, ModelConfig& c) {
  TANDEM_ASSIGN(const auto experts, keys.u32("expert_count"));
  if (c.architecture != Architecture::kQwen3Moe) {
    if (experts.value_or(0) > 0)
      return fail(
          keys.error(ErrorCode::kUnsupported, "expert_count",
                     "asks for a mixture of experts, which this architecture is read without"));
    return {};
  }
  TANDEM_TRY(keys.require("expert_count", c.moe.experts));
  TANDEM_TRY(keys.require("expert_used_count", c.moe.experts_per_token));
  TANDEM_TRY(keys.require("expert_feed_forward_length", c.moe.intermediate));
  c.moe.normalize_top_k = true;  // the format has no key for it; llama.cpp always does for qwen3moe
  c.moe_layers.assign(c.layers, true);
  return {};
}

Status read_tokens(const GgufFile& file, ModelConfig& c) {
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    TANDEM_ASSIGN(const auto id, file.integer(key));
    // Writers use 2^32-1 for "none".
    if (!id || *id < 0 || *id > INT32_MAX) continue;
    const auto token = static_cast<TokenId>(*id);
    if (std::find(c.eos.begin(), c.eos.end(), token) == c.eos.end()) c.eos.push_back(token);
  }
  TANDEM_ASSIGN(const auto bos, file.integer("tokenizer.ggml.bos_token_id"));
  if (bos && *bos >= 0 && *bos <= INT32_MAX) c.bos = static_cast<TokenId>(*bos);
  return {};
}

}  // namespace

Result<ModelConfig> gguf_config(const GgufFile& file, const GgufTensors& tensors) {
  TANDEM_ASSIGN(const auto name, file.string("general.architecture"));
  if (!name) return fail(file.error(ErrorCode::kCorruptData, "general.architecture", "is missing"));
  const auto* family = std::find_if(std::begin(kGgufFamilies), std::end(kGgufFamilies),
                                    [&](const GgufFamily& f) { return f.name == *name; });
  if (family == std::end(kGgufFamilies))
    return fail(file.error(ErrorCode::kUnsupported, "general.architecture",
                           "\"" + std::string(name->substr(0, 60)) +
                               "\" is not supported; known are llama, qwen2, qwen3, qwen3moe"));
  ModelConfig c;
  c.architecture = family->architecture;
  const Keys keys(file, *name);
  TANDEM_TRY(read_dims(file, keys, tensors, c));
  c.tied_head = !tensors.contains("output.weight");
  c.qk_norm = c.architecture == Architecture::kQwen3 || c.architecture == Architecture::kQwen3Moe;
  TANDEM_TRY(read_moe(keys, c));
  TANDEM_TRY(validate(c, file.name()));
  TANDEM_TRY(check_layers(keys, tensors, c));
  read_biases(tensors, c);  // with a number of layers that has been checked
  TANDEM_TRY(read_rope(file, keys, c));
  TANDEM_TRY(read_rope_freqs(file, tensors, c));
  TANDEM_TRY(read_windows(keys, c));
  TANDEM_TRY(read_tokens(file, c));
  TANDEM_TRY(validate(c, file.name()));
  drop_foreign_ids(c, file.name());
  return c;
}

std::optional<GgufName> gguf_name(std::string_view hf) {
  if (hf == "model.embed_tokens.weight") return GgufName{"token_embd.weight", {}};
  if (hf == "model.norm.weight") return GgufName{"output_norm.weight", {}};
  if (hf == "lm_head.weight") return GgufName{"output.weight", {}};
  constexpr std::string_view kLayers = "model.layers.";
  if (!hf.starts_with(kLayers)) return std::nullopt;
  hf.remove_prefix(kLayers.size());
  const size_t dot = hf.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string block = "blk." + std::string(hf.substr(0, dot)) + ".";
  hf.remove_prefix(dot + 1);
  const size_t kind = hf.rfind('.');
  if (kind == std::string_view::npos) return std::nullopt;
  const std::string suffix(hf.substr(kind));  // ".weight" or ".bias"
  std::string_view part = hf.substr(0, kind);

  constexpr std::string_view kExperts = "mlp.experts.";
  if (part.starts_with(kExperts)) {
    part.remove_prefix(kExperts.size());
    uint32_t expert = 0;
    const auto [end, ec] = std::from_chars(part.data(), part.data() + part.size(), expert);
    if (ec != std::errc{}) return std::nullopt;
    const std::string_view rest(end, static_cast<size_t>(part.data() + part.size() - end));
    if (rest == ".gate_proj") return GgufName{block + "ffn_gate_exps" + suffix, expert};
    if (rest == ".up_proj") return GgufName{block + "ffn_up_exps" + suffix, expert};
    if (rest == ".down_proj") return GgufName{block + "ffn_down_exps" + suffix, expert};
    return std::nullopt;
  }
  static constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"input_layernorm", "attn_norm"},    {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},       {"mlp.gate", "ffn_gate_inp"}};
  for (const auto& [from, to] : kParts)
    if (part == from) return GgufName{block + std::string(to) + suffix, {}};
  return std::nullopt;
}

uint32_t gguf_interleaved_heads(const ModelConfig& config, std::string_view name) {
  if (config.architecture != Architecture::kLlama) return 0;
  if (name.find(".attn_q.") != std::string_view::npos) return config.heads;
  if (name.find(".attn_k.") != std::string_view::npos) return config.kv_heads;
  return 0;
}

}  // namespace tandem::model
