#include "common/model/config.h"

#include <algorithm>
#include <sstream>

#include "common/base/check.h"

namespace tandem::model {

std::string_view to_string(Architecture a) {
  switch (a) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kQwen3Moe:
      return "qwen3_moe";
  }
  TANDEM_CHECK(false, "architecture outside its enumeration");
  return {};
}

Status validate(const ModelConfig& c, std::string_view file) {
  const auto bad = [&](std::string_view field, const std::string& what) {
    return fail(ErrorCode::kCorruptData, std::string(file) + ": " + std::string(field) + " " + what,
                std::string(field));
  };
  struct Bound {
    std::string_view field;
    uint64_t value;
    uint64_t most;
  };
  // Far above any published model, and low enough that products of two stay within 64 bits.
  const Bound bounds[] = {
      {"num_hidden_layers", c.layers, 4096},
      {"hidden_size", c.hidden, 1u << 20},
      {"num_attention_heads", c.heads, 1u << 14},
      {"num_key_value_heads", c.kv_heads, 1u << 14},
      {"head_dim", c.head_dim, 4096},
      {"intermediate_size", c.intermediate, 1u << 22},
      {"vocab_size", c.vocab, 1u << 24},
      {"max_position_embeddings", c.max_positions, 1u << 28},
  };
  for (const Bound& b : bounds)
    if (b.value < 1 || b.value > b.most)
      return bad(b.field, "must be between 1 and " + std::to_string(b.most) + ", is " +
                              std::to_string(b.value));
  if (c.heads % c.kv_heads != 0)
    return bad("num_attention_heads", "(" + std::to_string(c.heads) +
                                          ") must be a multiple of num_key_value_heads (" +
                                          std::to_string(c.kv_heads) + ")");
  if (c.head_dim % 2 != 0)
    return bad("head_dim", "must be even for rotary embedding, is " + std::to_string(c.head_dim));
  if (!(c.norm_eps > 0) || !(c.norm_eps < 1)) return bad("rms_norm_eps", "must be between 0 and 1");
  const bool any_moe =
      std::find(c.moe_layers.begin(), c.moe_layers.end(), true) != c.moe_layers.end();
  if (any_moe && (c.moe.experts < 1 || c.moe.experts > 65536))
    return bad("num_experts", "must be between 1 and 65536, is " + std::to_string(c.moe.experts));
  // What lists or loads a model's tensors takes memory for each: a number in a file must not decide
  // it.
  if (any_moe && uint64_t{c.moe.experts} * c.layers > (1u << 18))
    return bad("num_experts", "(" + std::to_string(c.moe.experts) + ") in " +
                                  std::to_string(c.layers) +
                                  " layers make more experts than the 262144 that are read");
  if (any_moe && (c.moe.experts_per_token < 1 || c.moe.experts_per_token > c.moe.experts))
    return bad("num_experts_per_tok", "must be between 1 and num_experts (" +
                                          std::to_string(c.moe.experts) + "), is " +
                                          std::to_string(c.moe.experts_per_token));
  if (any_moe && (c.moe.intermediate < 1 || c.moe.intermediate > (1u << 22)))
    return bad("moe_intermediate_size",
               "must be between 1 and 4194304, is " + std::to_string(c.moe.intermediate));
  return {};
}

void drop_foreign_ids(ModelConfig& c, std::string_view file) {
  const auto foreign = [&](TokenId id) {
    if (id >= 0 && static_cast<uint32_t>(id) < c.vocab) return false;
    c.notes.push_back(std::string(file) + ": special token id " + std::to_string(id) +
                      " lies outside the vocabulary of " + std::to_string(c.vocab) +
                      " and is ignored");
    return true;
  };
  std::erase_if(c.eos, foreign);
  if (c.bos && foreign(*c.bos)) c.bos.reset();
}

std::string ModelConfig::canonical() const {
  std::ostringstream s;
  s.precision(17);
  s << to_string(architecture) << ";layers=" << layers << ";hidden=" << hidden << ";heads=" << heads
    << ";kv_heads=" << kv_heads << ";head_dim=" << head_dim << ";intermediate=" << intermediate
    << ";vocab=" << vocab << ";positions=" << max_positions << ";eps=" << norm_eps
    << ";tied=" << tied_head << ";bias=" << qkv_bias << o_bias << mlp_bias << ";qk_norm=" << qk_norm
    << ";rope=" << to_string(rope.type) << ',' << rope.theta << ',' << rope.factor << ','
    << rope.original_max_positions << ',' << rope.low_freq_factor << ',' << rope.high_freq_factor
    << ',' << rope.beta_fast << ',' << rope.beta_slow << ',' << rope.truncate << ','
    << rope.attention_factor.value_or(-1) << ',' << rope.mscale.value_or(-1) << ','
    << rope.mscale_all_dim.value_or(-1);
  for (const float d : rope.frequency_divisors) s << '/' << d;
  s << ";windows=";
  for (const uint32_t w : windows) s << w << ',';
  s << ";moe=" << moe.experts << ',' << moe.experts_per_token << ',' << moe.intermediate << ','
    << moe.normalize_top_k << ':';
  for (const bool m : moe_layers) s << m;
  return s.str();
}

std::string ModelConfig::describe() const {
  std::ostringstream s;
  s << to_string(architecture) << ", " << layers << " layers, hidden " << hidden << ", " << heads
    << '/' << kv_heads << " heads of " << head_dim << ", context " << max_positions
    << ", vocabulary " << vocab;
  if (moe.experts > 0) s << ", " << moe.experts_per_token << " of " << moe.experts << " experts";
  if (rope.type != RopeType::kDefault) s << ", rope " << to_string(rope.type);
  return s.str();
}

namespace {

void add_attention(const ModelConfig& c, const std::string& layer, std::vector<TensorSpec>& out) {
  const int64_t hidden = c.hidden;
  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  const std::string at = layer + "self_attn.";
  out.push_back({layer + "input_layernorm.weight", {hidden}});
  for (const auto& [name, rows] : {std::pair("q_proj", q), {"k_proj", kv}, {"v_proj", kv}}) {
    out.push_back({at + name + ".weight", {rows, hidden}});
    if (c.qkv_bias) out.push_back({at + name + ".bias", {rows}});
  }
  if (c.qk_norm) {
    out.push_back({at + "q_norm.weight", {c.head_dim}});
    out.push_back({at + "k_norm.weight", {c.head_dim}});
  }
  out.push_back({at + "o_proj.weight", {hidden, q}});
  if (c.o_bias) out.push_back({at + "o_proj.bias", {hidden}});
}

void add_mlp(const ModelConfig& c, const std::string& prefix, int64_t intermediate, bool bias,
             std::vector<TensorSpec>& out) {
  const int64_t hidden = c.hidden;
  for (const char* name : {"gate_proj", "up_proj"}) {
    out.push_back({prefix + name + ".weight", {intermediate, hidden}});
    if (bias) out.push_back({prefix + name + ".bias", {intermediate}});
  }
  out.push_back({prefix + "down_proj.weight", {hidden, intermediate}});
  if (bias) out.push_back({prefix + "down_proj.bias", {hidden}});
}

}  // namespace

std::vector<TensorSpec> expected_tensors(const ModelConfig& c) {
  std::vector<TensorSpec> out;
  out.push_back({"model.embed_tokens.weight", {c.vocab, c.hidden}});
  for (uint32_t i = 0; i < c.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add_attention(c, layer, out);
    out.push_back({layer + "post_attention_layernorm.weight", {c.hidden}});
    if (!c.is_moe_layer(i)) {
      add_mlp(c, layer + "mlp.", c.intermediate, c.mlp_bias, out);
      continue;
    }
    out.push_back({layer + "mlp.gate.weight", {c.moe.experts, c.hidden}});
    for (uint32_t e = 0; e < c.moe.experts; ++e)
      add_mlp(c, layer + "mlp.experts." + std::to_string(e) + ".", c.moe.intermediate, false, out);
  }
  out.push_back({"model.norm.weight", {c.hidden}});
  if (!c.tied_head) out.push_back({"lm_head.weight", {c.vocab, c.hidden}});
  return out;
}

}  // namespace tandem::model
