#include "common/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A whole config.json of one family; `more` is further fields, later ones not allowed to repeat.
std::string config_text(const std::string& more = "", const std::string& type = "llama",
                        const std::string& dims = R"("hidden_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 100,
    "max_position_embeddings": 512)") {
  return R"({"model_type": ")" + type + "\", " + dims + (more.empty() ? "" : ", " + more) + "}";
}

Result<ModelConfig> parse(const std::string& text,
                          std::optional<std::string_view> generation = {}) {
  return parse_config(text, "dir/config.json", generation, "dir/generation_config.json");
}

ModelConfig good(const std::string& text, std::optional<std::string_view> generation = {}) {
  auto c = parse(text, generation);
  EXPECT_TRUE(c) << c.error().to_string();
  return c ? *c : ModelConfig{};
}

std::string refusal(const std::string& text, ErrorCode code,
                    std::optional<std::string_view> generation = {}) {
  const auto c = parse(text, generation);
  if (c) return "was accepted";
  EXPECT_EQ(c.error().code, code) << c.error().detail;
  return c.error().detail;
}

// ---- cases.md 26: head_dim that is not hidden over heads ----

TEST(Config, HeadDimIsReadAndDefaultsToHiddenOverHeads) {
  EXPECT_EQ(good(config_text(R"("head_dim": 16)")).head_dim, 16u);
  EXPECT_EQ(good(config_text()).head_dim, 12u);
  EXPECT_EQ(good(config_text(R"("head_dim": null)")).head_dim, 12u);
  EXPECT_EQ(good(config_text("", "qwen3")).head_dim, 128u);  // the reference class's own default
  EXPECT_THAT(refusal(config_text(R"("head_dim": 7)"), ErrorCode::kCorruptData),
              HasSubstr("head_dim"));
  EXPECT_THAT(refusal(config_text(R"("head_dim": 0)"), ErrorCode::kCorruptData),
              HasSubstr("head_dim"));
}

TEST(Config, HiddenThatHeadsDoNotDivideNeedsAHeadDim) {
  const std::string dims = R"("hidden_size": 50, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 4, "intermediate_size": 64, "vocab_size": 100)";
  EXPECT_THAT(refusal(config_text("", "llama", dims), ErrorCode::kCorruptData),
              AllOf(HasSubstr("head_dim"), HasSubstr("50")));
  EXPECT_EQ(good(config_text(R"("head_dim": 16)", "llama", dims)).head_dim, 16u);
}

// ---- cases.md 27: rope_scaling in all its spellings ----

TEST(ConfigRope, ReadsOldAndNewFormsAlike) {
  for (
      const char* text :
      {R"("rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64})",
       R"("rope_theta": 5e5, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
           "high_freq_factor": 4, "original_max_position_embeddings": 64})",
       R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 500000, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"}) {
    const RopeConfig rope = good(config_text(text)).rope;
    EXPECT_EQ(rope.type, RopeType::kLlama3);
    EXPECT_EQ(rope.theta, 5e5);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.low_freq_factor, 1);
    EXPECT_EQ(rope.high_freq_factor, 4);
    EXPECT_EQ(rope.original_max_positions, 64u);
  }
}

TEST(ConfigRope, DefaultsAndNulls) {
  for (const char* text :
       {"", R"("rope_scaling": null)", R"("rope_scaling": {"rope_type": "default"})",
        R"("rope_parameters": {})", R"("rope_parameters": null, "rope_scaling": null)"}) {
    const RopeConfig rope = good(config_text(text)).rope;
    EXPECT_EQ(rope.type, RopeType::kDefault) << text;
    EXPECT_EQ(rope.theta, 10000) << text;
  }
  EXPECT_EQ(good(config_text(R"("rope_theta": 1e6)")).rope.theta, 1e6);
  // The object's own theta wins over the one outside, the old key over the new one, as in the
  // reference.
  EXPECT_EQ(
      good(config_text(R"("rope_theta": 7.0, "rope_parameters": {"rope_theta": 9.0})")).rope.theta,
      9);
  EXPECT_EQ(good(config_text(R"("rope_parameters": {"rope_type": "linear", "factor": 3},
                                "rope_scaling": {"type": "linear", "factor": 2})"))
                .rope.factor,
            2);
}

TEST(ConfigRope, RopeTypeWinsOverTypeWhereBothAreGiven) {
  const RopeConfig rope =
      good(config_text(R"("rope_scaling": {"type": "zzz", "rope_type": "linear", "factor": 2})"))
          .rope;
  EXPECT_EQ(rope.type, RopeType::kLinear);
  EXPECT_EQ(rope.factor, 2);
}

TEST(ConfigRope, YarnTakesItsLengthFromThreePlaces) {
  EXPECT_EQ(good(config_text(R"("rope_scaling": {"rope_type": "yarn", "factor": 4})"))
                .rope.original_max_positions,
            512u);
  EXPECT_EQ(good(config_text(R"("rope_scaling": {"rope_type": "yarn", "factor": 4,
                 "original_max_position_embeddings": 128})"))
                .rope.original_max_positions,
            128u);
  const RopeConfig rope = good(config_text(R"("original_max_position_embeddings": 256,
      "rope_scaling": {"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 128,
      "attention_factor": 1.25, "beta_fast": 24, "beta_slow": 0, "mscale": 1.1, "mscale_all_dim": 0.5,
      "truncate": false})"))
                              .rope;
  EXPECT_EQ(rope.original_max_positions, 256u);
  EXPECT_EQ(rope.factor, 2);  // null: the ratio of the lengths
  EXPECT_EQ(rope.attention_factor, 1.25);
  EXPECT_EQ(rope.beta_fast, 24);
  EXPECT_EQ(rope.beta_slow, 1);  // 0 counts as absent in the reference
  EXPECT_EQ(rope.mscale, 1.1);
  EXPECT_EQ(rope.mscale_all_dim, 0.5);
  EXPECT_FALSE(rope.truncate);
}

TEST(ConfigRope, UnknownKindsAreRefusedByName) {
  for (const char* kind : {"zzz", "longrope", "su", "mrope", "ntk", "proportional", ""})
    EXPECT_THAT(refusal(config_text(std::string(R"("rope_scaling": {"rope_type": ")") + kind +
                                    R"(", "factor": 2})"),
                        ErrorCode::kUnsupported),
                AllOf(HasSubstr("dir/config.json: rope_scaling.rope_type"),
                      HasSubstr("\"" + std::string(kind) + "\"")));
  EXPECT_THAT(refusal(config_text(R"("rope_scaling": {"type": "zzz"})"), ErrorCode::kUnsupported),
              HasSubstr("rope_scaling.type \"zzz\""));
  EXPECT_THAT(
      refusal(config_text(R"("rope_parameters": {"full_attention": {"rope_type": "default"}})"),
              ErrorCode::kUnsupported),
      HasSubstr("full_attention"));
}

TEST(ConfigRope, MissingAndSenselessFieldsAreNamed) {
  const auto scaling = [](const std::string& fields) {
    return refusal(config_text("\"rope_scaling\": {" + fields + "}"), ErrorCode::kCorruptData);
  };
  EXPECT_THAT(scaling(R"("type": "linear")"), HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(scaling(R"("type": "dynamic")"), HasSubstr("factor"));
  EXPECT_THAT(scaling(R"("type": "yarn")"), HasSubstr("factor"));
  EXPECT_THAT(scaling(R"("type": "linear", "factor": "2")"), HasSubstr("must be a number"));
  EXPECT_THAT(scaling(R"("type": "linear", "factor": 0)"), HasSubstr("factor must be between"));
  // What float32 makes infinities of.
  EXPECT_THAT(scaling(R"("type": "linear", "factor": 1e-45)"), HasSubstr("factor must be between"));
  EXPECT_THAT(scaling(R"("type": "yarn", "factor": 1e30)"), HasSubstr("factor must be between"));
  EXPECT_THAT(scaling(R"("type": "yarn", "factor": 4, "mscale": 1e400, "mscale_all_dim": 1)"),
              HasSubstr("mscale"));
  EXPECT_THAT(scaling(R"("type": "yarn", "factor": 4, "attention_factor": 1e400)"),
              HasSubstr("attention_factor"));
  EXPECT_THAT(scaling(R"("type": "linear", "factor": -2)"), HasSubstr("factor"));
  EXPECT_THAT(scaling(R"("type": "llama3", "factor": 8)"), HasSubstr("low_freq_factor"));
  EXPECT_THAT(
      scaling(R"("type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1)"),
      HasSubstr("high_freq_factor"));
  EXPECT_THAT(scaling(R"("type": 5)"), HasSubstr("must be a string"));
  EXPECT_THAT(refusal(config_text(R"("rope_scaling": "yarn")"), ErrorCode::kCorruptData),
              HasSubstr("must be an object or null"));
  EXPECT_THAT(refusal(config_text(R"("rope_theta": 0)"), ErrorCode::kCorruptData),
              HasSubstr("rope_theta"));
}

// ---- cases.md 28: biases ----

TEST(ConfigBiases, FollowTheFamilies) {
  const ModelConfig llama = good(config_text(R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  const ModelConfig plain = good(config_text());
  EXPECT_FALSE(plain.qkv_bias || plain.o_bias || plain.mlp_bias || plain.qk_norm);
  const ModelConfig qwen2 = good(config_text("", "qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias || qwen2.qk_norm);
  const ModelConfig qwen3 = good(config_text(R"("attention_bias": true)", "qwen3"));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && qwen3.qk_norm);
  // The reference's Mistral has no such flags.
  const ModelConfig mistral =
      good(config_text(R"("attention_bias": true, "mlp_bias": true)", "mistral"));
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias);
}

// ---- cases.md 29: more than one end token ----

TEST(ConfigEos, GenerationConfigWins) {
  const std::string text = config_text(R"("eos_token_id": 7)");
  EXPECT_THAT(good(text, R"({"eos_token_id": [7, 9]})").eos, ElementsAre(7, 9));
  EXPECT_THAT(good(text, R"({"eos_token_id": 9})").eos, ElementsAre(9));
  EXPECT_THAT(good(text).eos, ElementsAre(7));
  EXPECT_THAT(good(text, R"({})").eos, ElementsAre(7));
  EXPECT_THAT(good(text, R"({"eos_token_id": null})").eos, ElementsAre(7));
  EXPECT_THAT(good(config_text(R"("eos_token_id": [7, 9, 7])")).eos, ElementsAre(7, 9));
  EXPECT_THAT(good(config_text(R"("eos_token_id": null)")).eos, IsEmpty());
  EXPECT_THAT(good(config_text()).eos, ElementsAre(2));  // LlamaConfig's default
  EXPECT_THAT(good(config_text("", "qwen2")).eos, IsEmpty());
}

TEST(ConfigEos, BadIdsAreNamedForeignOnesNoted) {
  EXPECT_THAT(refusal(config_text(R"("eos_token_id": "2")"), ErrorCode::kCorruptData),
              HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal(config_text(R"("eos_token_id": [1.5])"), ErrorCode::kCorruptData),
              HasSubstr("1.5E0"));
  EXPECT_THAT(refusal(config_text(R"("eos_token_id": -1)"), ErrorCode::kCorruptData),
              HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal(config_text(), ErrorCode::kCorruptData, R"({"eos_token_id": {}})"),
              HasSubstr("dir/generation_config.json: eos_token_id"));
  EXPECT_THAT(refusal(config_text(), ErrorCode::kCorruptData, "[]"),
              HasSubstr("generation_config.json"));
  const ModelConfig c = good(config_text(R"("eos_token_id": [5, 4000], "bos_token_id": 5000)"));
  EXPECT_THAT(c.eos, ElementsAre(5));
  EXPECT_FALSE(c.bos);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("4000"), HasSubstr("5000")));
}

TEST(ConfigEos, BosNullAndDefault) {
  EXPECT_EQ(good(config_text()).bos, 1);
  EXPECT_FALSE(good(config_text(R"("bos_token_id": null)")).bos);
  EXPECT_FALSE(good(config_text("", "qwen3")).bos);
}

// ---- cases.md 30: no family here has a partial rotary default; a file that asks for one is
// refused ----

TEST(ConfigRope, PartialRotaryIsNeverIgnored) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    EXPECT_EQ(good(config_text(R"("partial_rotary_factor": 1.0)", type)).canonical(),
              good(config_text("", type)).canonical());
    EXPECT_THAT(
        refusal(config_text(R"("partial_rotary_factor": 0.5)", type), ErrorCode::kUnsupported),
        HasSubstr("partial_rotary_factor"));
    EXPECT_THAT(refusal(config_text(R"("rope_parameters": {"partial_rotary_factor": 0.25})", type),
                        ErrorCode::kUnsupported),
                HasSubstr("rope_parameters.partial_rotary_factor"));
  }
}

// ---- windows ----

TEST(ConfigWindows, MistralSlidesEverywhere) {
  EXPECT_THAT(good(config_text(R"("sliding_window": 8)", "mistral")).windows,
              ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(good(config_text(R"("sliding_window": null)", "mistral")).windows,
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(good(config_text("", "mistral")).windows, ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_THAT(refusal(config_text(R"("sliding_window": 0)", "mistral"), ErrorCode::kCorruptData),
              HasSubstr("sliding_window"));
}

TEST(ConfigWindows, QwenSlidesFromALayerOnOrWhereItSays) {
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_THAT(good(config_text(R"("sliding_window": 8)", type)).windows, ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(
        good(
            config_text(
                R"("use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3)", type))
            .windows,
        ElementsAre(0, 0, 0, 8));
    EXPECT_THAT(
        good(config_text(R"("use_sliding_window": true, "max_window_layers": 2)", type)).windows,
        ElementsAre(0, 0, 4096, 4096));
    EXPECT_THAT(
        good(config_text(R"("use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"])",
                         type))
            .windows,
        ElementsAre(8, 0, 0, 8));
    // A window that is off stays off whatever the layers are called.
    EXPECT_THAT(good(config_text(R"("use_sliding_window": false, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"])",
                                 type))
                    .windows,
                ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(
        refusal(config_text(R"("layer_types": ["full_attention"])", type), ErrorCode::kCorruptData),
        HasSubstr("array of 4 names"));
    EXPECT_THAT(
        refusal(config_text(R"("layer_types": ["full_attention", "full_attention", "full_attention",
        "linear_attention"])",
                            type),
                ErrorCode::kUnsupported),
        HasSubstr("linear_attention"));
  }
  EXPECT_THAT(
      good(config_text(R"("use_sliding_window": true, "sliding_window": 8)", "qwen3_moe")).windows,
      ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(good(config_text(R"("sliding_window": 8)")).windows,
              ElementsAre(0, 0, 0, 0));  // llama
}

// ---- mixture of experts ----

TEST(ConfigMoe, LayersFollowStepAndExceptions) {
  const ModelConfig c =
      good(config_text(R"("num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
      "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3, 77])",
                       "qwen3_moe"));
  EXPECT_THAT(c.moe_layers, ElementsAre(false, true, false, false));
  EXPECT_EQ(c.moe.experts, 8u);
  EXPECT_EQ(c.moe.experts_per_token, 2u);
  EXPECT_EQ(c.moe.intermediate, 16u);
  EXPECT_TRUE(c.moe.normalize_top_k);
  const ModelConfig d =
      good(config_text(R"("num_local_experts": 4, "num_experts_per_tok": 4)", "qwen3_moe"));
  EXPECT_EQ(d.moe.experts, 4u);
  EXPECT_FALSE(d.moe.normalize_top_k);
  EXPECT_THAT(d.moe_layers, ElementsAre(true, true, true, true));
  const ModelConfig dense =
      good(config_text(R"("num_experts": 8, "mlp_only_layers": [0, 1, 2, 3])", "qwen3_moe"));
  EXPECT_EQ(dense.moe.experts, 0u);
}

TEST(ConfigMoe, ContradictionsAreNamed) {
  EXPECT_THAT(
      refusal(
          config_text(
              R"("num_experts": 65536, "moe_intermediate_size": 1)", "qwen3_moe",
              R"("hidden_size": 4, "num_hidden_layers": 4096, "num_attention_heads": 1, "num_key_value_heads": 1,
      "intermediate_size": 1, "vocab_size": 1)"),
          ErrorCode::kCorruptData),
      HasSubstr("262144"));
  EXPECT_THAT(refusal(config_text(R"("num_experts": 8, "num_local_experts": 4)", "qwen3_moe"),
                      ErrorCode::kCorruptData),
              HasSubstr("contradicts num_local_experts"));
  EXPECT_THAT(refusal(config_text(R"("num_experts": 4, "num_experts_per_tok": 5)", "qwen3_moe"),
                      ErrorCode::kCorruptData),
              HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(
      refusal(config_text(R"("decoder_sparse_step": 0)", "qwen3_moe"), ErrorCode::kCorruptData),
      HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(
      refusal(config_text(R"("mlp_only_layers": ["a"])", "qwen3_moe"), ErrorCode::kCorruptData),
      HasSubstr("mlp_only_layers"));
}

// ---- what is refused, and how ----

TEST(Config, UnsupportedArchitecturesAreNamed) {
  EXPECT_THAT(refusal(config_text("", "gemma3"), ErrorCode::kUnsupported),
              AllOf(HasSubstr("dir/config.json: model_type"), HasSubstr("gemma3")));
  EXPECT_THAT(refusal(config_text(R"("architectures": ["LlamaForSequenceClassification"])"),
                      ErrorCode::kUnsupported),
              HasSubstr("LlamaForSequenceClassification"));
  EXPECT_THAT(
      refusal(config_text(R"("architectures": ["Qwen2ForCausalLM"])"), ErrorCode::kCorruptData),
      HasSubstr("contradicts"));
  EXPECT_EQ(good(config_text(R"("architectures": [])")).architecture, Architecture::kLlama);
}

TEST(Config, WhatWouldChangeTheMathematicsIsRefusedByName) {
  const auto unsupported = [](const char* more) {
    return refusal(config_text(more), ErrorCode::kUnsupported);
  };
  EXPECT_THAT(unsupported(R"("hidden_act": "gelu")"),
              AllOf(HasSubstr("hidden_act"), HasSubstr("gelu")));
  EXPECT_THAT(unsupported(R"("quantization_config": {"quant_method": "gptq", "bits": 4})"),
              HasSubstr("gptq"));
  EXPECT_THAT(unsupported(R"("final_logit_softcapping": 30.0)"),
              HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(unsupported(R"("embedding_multiplier": 12.0)"), HasSubstr("embedding_multiplier"));
  EXPECT_THAT(unsupported(R"("torch_dtype": "float64")"), HasSubstr("float64"));
  // The reference lets a model see later tokens for null too.
  for (const char* blind : {"false", "null"})
    EXPECT_THAT(unsupported(("\"is_causal\": " + std::string(blind)).c_str()),
                HasSubstr("is_causal asks for attention in both directions"));
  // Neutral values say nothing.
  good(config_text(R"("is_causal": true)"));
  good(config_text(
      R"("hidden_act": "silu", "quantization_config": null, "logit_scale": 1.0, "alibi": false)"));
}

TEST(Config, WrongTypesAndRangesNameFileAndField) {
  const auto corrupt = [](const char* text) { return refusal(text, ErrorCode::kCorruptData); };
  EXPECT_THAT(corrupt(R"({"model_type": "llama"})"),
              HasSubstr("dir/config.json: hidden_size is missing"));
  EXPECT_THAT(corrupt(R"({"model_type": "llama", "hidden_size": "64"})"),
              HasSubstr("whole number"));
  EXPECT_THAT(corrupt(R"({"model_type": "llama", "hidden_size": -64})"), HasSubstr("is -64"));
  EXPECT_THAT(corrupt(R"({"model_type": "llama", "hidden_size": 1e30})"), HasSubstr("hidden_size"));
  EXPECT_THAT(corrupt(R"({"model_type": 3})"), HasSubstr("model_type must be a string"));
  EXPECT_THAT(corrupt("{"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(corrupt(""), HasSubstr("is not valid JSON"));
  EXPECT_THAT(corrupt("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(corrupt("{} {}"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(corrupt(R"({"hidden_size": 1, "hidden_size": 2})"),
              HasSubstr("\"hidden_size\" appears twice"));
  EXPECT_THAT(corrupt(std::string(100000, '[').c_str()), HasSubstr("is not valid JSON"));
  EXPECT_THAT(refusal(config_text(R"("tie_word_embeddings": 1)"), ErrorCode::kCorruptData),
              HasSubstr("tie_word_embeddings must be true or false"));
  EXPECT_THAT(
      refusal(config_text("", "llama",
                          R"("hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 3, "intermediate_size": 64, "vocab_size": 100)"),
              ErrorCode::kCorruptData),
      HasSubstr("multiple of num_key_value_heads"));
  EXPECT_THAT(
      refusal(config_text("", "llama", R"("hidden_size": 48, "num_hidden_layers": 1000000000,
      "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100)"),
              ErrorCode::kCorruptData),
      HasSubstr("num_hidden_layers"));
  EXPECT_THAT(refusal(config_text(R"("rms_norm_eps": 0)"), ErrorCode::kCorruptData),
              HasSubstr("rms_norm_eps"));
}

TEST(Config, KvHeadsDefaultAsInTheReference) {
  const std::string dims = R"("hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 32,
      "intermediate_size": 64, "vocab_size": 100)";
  EXPECT_EQ(good(config_text("", "llama", dims)).kv_heads, 32u);
  EXPECT_EQ(good(config_text("", "mistral", dims)).kv_heads, 8u);
  EXPECT_EQ(good(config_text("", "qwen3_moe", dims)).kv_heads, 4u);
  EXPECT_EQ(good(config_text(R"("num_key_value_heads": null)", "mistral", dims)).kv_heads, 32u);
}

TEST(Config, CanonicalTellsApartWhatComputesApart) {
  const std::string base = good(config_text()).canonical();
  for (const char* more :
       {R"("rope_theta": 20000)", R"("head_dim": 16)", R"("attention_bias": true)",
        R"("mlp_bias": true)", R"("tie_word_embeddings": true)", R"("rms_norm_eps": 2e-6)",
        R"("rope_scaling": {"type": "linear", "factor": 2})"})
    EXPECT_NE(good(config_text(more)).canonical(), base) << more;
  EXPECT_EQ(good(config_text(R"("use_cache": true, "torch_dtype": "float32", "eos_token_id": 5)"))
                .canonical(),
            base);
}

}  // namespace
}  // namespace tandem::model
