// config.json and generation_config.json to ModelConfig. Absent fields take the defaults of the
// reference's configuration classes (huggingface/transformers,
// src/transformers/models/*/configuration_*.py).
#include <algorithm>
#include <boost/json/array.hpp>

#include "common/model/config.h"
#include "common/model/config_rope.h"
#include "common/model/json.h"

namespace tandem::model {
namespace {

namespace json = boost::json;

// What the reference's classes differ in.
struct Family {
  Architecture architecture;
  std::string_view class_name;
  uint32_t kv_heads;       // default; 0: as many as heads
  uint32_t head_dim;       // default; 0: hidden / heads
  uint32_t max_positions;  // default
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
};
constexpr Family kFamilies[] = {
    {Architecture::kLlama, "LlamaForCausalLM", 0, 0, 2048, 1, 2},
    {Architecture::kMistral, "MistralForCausalLM", 8, 0, 131072, 1, 2},
    {Architecture::kQwen2, "Qwen2ForCausalLM", 32, 0, 32768, {}, {}},
    {Architecture::kQwen3, "Qwen3ForCausalLM", 32, 128, 32768, {}, {}},
    {Architecture::kQwen3Moe, "Qwen3MoeForCausalLM", 4, 0, 32768, {}, {}},
};

std::string known_families() {
  std::string text;
  for (const Family& f : kFamilies) {
    if (!text.empty()) text += ", ";
    text += f.class_name;
  }
  return text;
}

Result<const Family*> find_family(const JsonFields& top) {
  const Family* by_class = nullptr;
  if (const json::value* v = top.raw("architectures"); v != nullptr) {
    if (!v->is_array())
      return fail(top.error(ErrorCode::kCorruptData, "architectures", "must be an array"));
    if (!v->get_array().empty()) {
      const json::value& first = v->get_array().front();
      for (const Family& f : kFamilies)
        if (first.is_string() &&
            first.get_string() == json::string_view(f.class_name.data(), f.class_name.size()))
          by_class = &f;
      if (by_class == nullptr)
        return fail(top.error(ErrorCode::kUnsupported, "architectures",
                              excerpt(first) + " is not supported; known are " + known_families()));
    }
  }
  TANDEM_ASSIGN(const auto type, top.string("model_type"));
  if (!type) {
    if (by_class != nullptr) return by_class;
    return fail(top.error(ErrorCode::kCorruptData, "model_type", "is missing"));
  }
  for (const Family& f : kFamilies) {
    if (*type != to_string(f.architecture)) continue;
    if (by_class != nullptr && by_class != &f)
      return fail(top.error(ErrorCode::kCorruptData, "model_type",
                            "\"" + *type + "\" contradicts architectures, which names " +
                                std::string(by_class->class_name)));
    return &f;
  }
  return fail(top.error(
      ErrorCode::kUnsupported, "model_type",
      "\"" + *type + "\" is not supported; known are llama, mistral, qwen2, qwen3, qwen3_moe"));
}

// Fields that would change the mathematics, and are not implemented, in any of these families.
Status refuse_unsupported(const JsonFields& top) {
  TANDEM_ASSIGN(const auto act, top.string("hidden_act"));
  if (act && *act != "silu" && *act != "swish")
    return fail(top.error(ErrorCode::kUnsupported, "hidden_act",
                          "is \"" + *act + "\"; only silu is implemented"));
  // The reference attends to later tokens too for anything that counts as false, null included.
  if (top.has_key("is_causal")) {
    TANDEM_ASSIGN(const auto causal, top.boolean("is_causal"));
    if (!causal.value_or(false))
      return fail(top.error(ErrorCode::kUnsupported, "is_causal",
                            "asks for attention in both directions; only models that generate "
                            "from left to right are served"));
  }
  if (const json::value* v = top.raw("quantization_config"); v != nullptr) {
    std::string method = "unnamed";
    if (v->is_object())
      if (const json::value* m = v->get_object().if_contains("quant_method"); m != nullptr)
        method = excerpt(*m);
    return fail(top.error(
        ErrorCode::kUnsupported, "quantization_config",
        "asks for quantized weights (method " + method +
            "), which this version does not read; use the bf16 checkpoint or a GGUF file"));
  }
  for (const std::string_view key :
       {"clip_qkv", "attn_logit_softcapping", "final_logit_softcapping", "embedding_multiplier",
        "residual_multiplier", "attention_multiplier", "logits_scaling", "logit_scale", "alibi"}) {
    const json::value* v = top.raw(key);
    const bool neutral = v == nullptr || (v->is_bool() && !v->get_bool()) ||
                         (v->is_number() && v->to_number<double>() == 1.0);
    if (!neutral)
      return fail(top.error(ErrorCode::kUnsupported, key,
                            "is " + excerpt(*v) + ", which is not implemented"));
  }
  return {};
}

Status read_u32(const JsonFields& top, std::string_view key, std::optional<uint32_t> fallback,
                uint32_t& out) {
  TANDEM_ASSIGN(const auto v, top.u32(key, 1, 1u << 30));
  if (!v && !fallback) return fail(top.error(ErrorCode::kCorruptData, key, "is missing"));
  out = v ? *v : *fallback;
  return {};
}

Status read_flag(const JsonFields& top, std::string_view key, bool fallback, bool& out) {
  TANDEM_ASSIGN(const auto v, top.boolean(key));
  out = v.value_or(fallback);
  return {};
}

Status read_dims(const JsonFields& top, const Family& family, ModelConfig& c) {
  TANDEM_TRY(read_u32(top, "hidden_size", {}, c.hidden));
  TANDEM_TRY(read_u32(top, "num_hidden_layers", {}, c.layers));
  TANDEM_TRY(read_u32(top, "num_attention_heads", {}, c.heads));
  TANDEM_TRY(read_u32(top, "intermediate_size", {}, c.intermediate));
  TANDEM_TRY(read_u32(top, "vocab_size", {}, c.vocab));
  TANDEM_TRY(read_u32(top, "max_position_embeddings", family.max_positions, c.max_positions));
  // An explicit null means "as many as heads"; an absent key means the class's default.
  const uint32_t kv_default =
      family.kv_heads == 0 || top.has_key("num_key_value_heads") ? c.heads : family.kv_heads;
  TANDEM_TRY(read_u32(top, "num_key_value_heads", kv_default, c.kv_heads));
  const bool fixed_head = family.head_dim != 0 && !top.has_key("head_dim");
  if (!top.present("head_dim") && !fixed_head && c.hidden % c.heads != 0)
    return fail(top.error(ErrorCode::kCorruptData, "head_dim",
                          "is missing, and hidden_size (" + std::to_string(c.hidden) +
                              ") is not a multiple of num_attention_heads (" +
                              std::to_string(c.heads) + ")"));
  TANDEM_TRY(
      read_u32(top, "head_dim", fixed_head ? family.head_dim : c.hidden / c.heads, c.head_dim));
  TANDEM_ASSIGN(const auto eps, top.number("rms_norm_eps"));
  c.norm_eps = static_cast<float>(eps.value_or(1e-6));
  return {};
}

Status read_biases(const JsonFields& top, ModelConfig& c) {
  TANDEM_TRY(read_flag(top, "tie_word_embeddings", false, c.tied_head));
  switch (c.architecture) {
    case Architecture::kLlama:
      TANDEM_TRY(read_flag(top, "attention_bias", false, c.qkv_bias));
      c.o_bias = c.qkv_bias;
      return read_flag(top, "mlp_bias", false, c.mlp_bias);
    case Architecture::kMistral:
      return {};
    case Architecture::kQwen2:
      c.qkv_bias = true;
      return {};
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
      c.qk_norm = true;
      TANDEM_TRY(read_flag(top, "attention_bias", false, c.qkv_bias));
      c.o_bias = c.qkv_bias;
      return {};
  }
  return {};
}

Status read_layer_types(const JsonFields& top, std::optional<uint32_t> window, ModelConfig& c) {
  const json::value* v = top.raw("layer_types");
  if (!v->is_array() || v->get_array().size() != c.layers)
    return fail(
        top.error(ErrorCode::kCorruptData, "layer_types",
                  "must be an array of " + std::to_string(c.layers) + " names, one per layer"));
  for (size_t i = 0; i < c.layers; ++i) {
    const json::value& type = v->get_array()[i];
    if (type.is_string() && type.get_string() == "full_attention") continue;
    if (!type.is_string() || type.get_string() != "sliding_attention")
      return fail(
          top.error(ErrorCode::kUnsupported, "layer_types",
                    "holds " + excerpt(type) + "; known are full_attention and sliding_attention"));
    // As in the reference, a sliding layer without a window sees everything.
    c.windows[i] = window.value_or(0);
  }
  return {};
}

Status read_windows(const JsonFields& top, ModelConfig& c) {
  c.windows.assign(c.layers, 0);
  TANDEM_ASSIGN(auto window, top.u32("sliding_window", 1, 1u << 30));
  switch (c.architecture) {
    case Architecture::kLlama:
      return {};
    case Architecture::kMistral:
      if (!top.has_key("sliding_window")) window = 4096;
      c.windows.assign(c.layers, window.value_or(0));
      return {};
    case Architecture::kQwen2:
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
      break;
  }
  bool use = false;
  TANDEM_TRY(read_flag(top, "use_sliding_window", false, use));
  if (use && !top.has_key("sliding_window")) window = 4096;
  if (!use) window.reset();
  if (c.architecture == Architecture::kQwen3Moe) {
    c.windows.assign(c.layers, window.value_or(0));
    return {};
  }
  if (top.present("layer_types")) return read_layer_types(top, window, c);
  TANDEM_ASSIGN(const auto full, top.u32("max_window_layers", 0, 1u << 30));
  for (uint32_t i = full.value_or(28); i < c.layers; ++i) c.windows[i] = window.value_or(0);
  return {};
}

Status read_moe(const JsonFields& top, ModelConfig& c) {
  if (c.architecture != Architecture::kQwen3Moe) return {};
  // transformers 5 writes num_local_experts, transformers 4 num_experts.
  TANDEM_ASSIGN(const auto local, top.u32("num_local_experts", 0, 65536));
  TANDEM_ASSIGN(const auto experts, top.u32("num_experts", 0, 65536));
  if (local && experts && *local != *experts)
    return fail(top.error(ErrorCode::kCorruptData, "num_experts",
                          "(" + std::to_string(*experts) + ") contradicts num_local_experts (" +
                              std::to_string(*local) + ")"));
  c.moe.experts = local ? *local : experts.value_or(128);
  TANDEM_TRY(read_u32(top, "num_experts_per_tok", 8, c.moe.experts_per_token));
  TANDEM_TRY(read_u32(top, "moe_intermediate_size", 768, c.moe.intermediate));
  TANDEM_TRY(read_flag(top, "norm_topk_prob", false, c.moe.normalize_top_k));
  uint32_t step = 1;
  TANDEM_TRY(read_u32(top, "decoder_sparse_step", 1, step));
  c.moe_layers.assign(c.layers, false);
  for (uint32_t i = 0; i < c.layers; ++i)
    c.moe_layers[i] = c.moe.experts > 0 && (i + 1) % step == 0;
  if (const json::value* v = top.raw("mlp_only_layers"); v != nullptr) {
    if (!v->is_array())
      return fail(top.error(ErrorCode::kCorruptData, "mlp_only_layers",
                            "must be an array of layer numbers"));
    for (const json::value& layer : v->get_array()) {
      if (!layer.is_int64())
        return fail(top.error(ErrorCode::kCorruptData, "mlp_only_layers",
                              "holds " + excerpt(layer) + ", not a layer number"));
      const int64_t i = layer.get_int64();
      if (i >= 0 && i < c.layers) c.moe_layers[static_cast<size_t>(i)] = false;
    }
  }
  if (std::find(c.moe_layers.begin(), c.moe_layers.end(), true) == c.moe_layers.end()) {
    c.moe_layers.clear();
    c.moe = {};
  }
  return {};
}

// A token id, a list of them, or null.
Result<std::vector<TokenId>> read_ids(const JsonFields& fields, std::string_view key) {
  const json::value* v = fields.raw(key);
  std::vector<TokenId> ids;
  if (v == nullptr) return ids;
  const auto add = [&](const json::value& id) -> Status {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > INT32_MAX)
      return fail(
          fields.error(ErrorCode::kCorruptData, key, "must be token ids, holds " + excerpt(id)));
    const auto token = static_cast<TokenId>(id.get_int64());
    if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    return {};
  };
  if (!v->is_array()) {
    TANDEM_TRY(add(*v));
    return ids;
  }
  for (const json::value& id : v->get_array()) TANDEM_TRY(add(id));
  return ids;
}

Status read_tokens(const JsonFields& top, const Family& family,
                   std::optional<std::string_view> generation_json,
                   std::string_view generation_file, ModelConfig& c) {
  TANDEM_ASSIGN(c.eos, read_ids(top, "eos_token_id"));
  if (!top.has_key("eos_token_id") && family.eos) c.eos = {*family.eos};
  TANDEM_ASSIGN(auto bos, read_ids(top, "bos_token_id"));
  if (!bos.empty()) c.bos = bos.front();
  if (!top.has_key("bos_token_id")) c.bos = family.bos;
  if (!generation_json) return {};

  TANDEM_ASSIGN(const json::value root, parse_json(*generation_json, generation_file));
  if (!root.is_object())
    return fail(ErrorCode::kCorruptData, std::string(generation_file) + ": must be a JSON object");
  const JsonFields generation(root.get_object(), generation_file);
  TANDEM_ASSIGN(auto eos, read_ids(generation, "eos_token_id"));
  if (!eos.empty()) c.eos = std::move(eos);  // it wins; absent or null says nothing
  TANDEM_ASSIGN(bos, read_ids(generation, "bos_token_id"));
  if (!bos.empty()) c.bos = bos.front();
  return {};
}

Status read_dtype(const JsonFields& top, ModelConfig& c) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    TANDEM_ASSIGN(auto name, top.string(key));
    if (!name) continue;
    std::string_view s = *name;
    if (s.starts_with("torch.")) s.remove_prefix(6);
    if (s == "float32" || s == "float")
      c.dtype = DType::kF32;
    else if (s == "bfloat16")
      c.dtype = DType::kBf16;
    else if (s == "float16" || s == "half")
      c.dtype = DType::kF16;
    else if (s != "auto")
      return fail(top.error(ErrorCode::kUnsupported, key,
                            "is \"" + *name + "\"; known are float32, float16 and bfloat16"));
    return {};
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view config_json, std::string_view file,
                                 std::optional<std::string_view> generation_json,
                                 std::string_view generation_file) {
  TANDEM_ASSIGN(const json::value root, parse_json(config_json, file));
  if (!root.is_object())
    return fail(ErrorCode::kCorruptData, std::string(file) + ": must be a JSON object");
  const JsonFields top(root.get_object(), file);
  TANDEM_ASSIGN(const Family* family, find_family(top));
  TANDEM_TRY(refuse_unsupported(top));
  ModelConfig c;
  c.architecture = family->architecture;
  TANDEM_TRY(read_dims(top, *family, c));
  TANDEM_TRY(read_biases(top, c));
  // Bounds first: what follows allocates per layer.
  TANDEM_TRY(validate(c, file));
  TANDEM_TRY(parse_rope(root.get_object(), file, c));
  TANDEM_TRY(read_windows(top, c));
  TANDEM_TRY(read_moe(top, c));
  TANDEM_TRY(read_tokens(top, *family, generation_json, generation_file, c));
  TANDEM_TRY(read_dtype(top, c));
  TANDEM_TRY(validate(c, file));
  drop_foreign_ids(c, file);
  return c;
}

}  // namespace tandem::model
