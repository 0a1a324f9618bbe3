#include "common/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/base/clock.h"
#include "common/model/gguf.h"
#include "common/model/text.h"
#include "tests/unit/model/test_files.h"

namespace tandem::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_all;
using testing::replaced;
using testing::safetensors_file;
using testing::TempFolder;

namespace fs = std::filesystem;
const fs::path kGolden = TANDEM_TEST_DATA "/golden";

std::string refusal(const fs::path& path, std::optional<ErrorCode> code = {},
                    const CheckpointOptions& options = {}) {
  const auto c = Checkpoint::open(path, options);
  if (c) return "was accepted";
  if (code) {
    EXPECT_EQ(error_traits(c.error().code).label, error_traits(*code).label) << c.error().detail;
  }
  return c.error().detail;
}

std::unique_ptr<Checkpoint> good(const fs::path& path, const CheckpointOptions& options = {}) {
  auto c = Checkpoint::open(path, options);
  EXPECT_TRUE(c) << c.error().to_string();
  return c ? std::move(*c) : nullptr;
}

TEST(Checkpoint, OpensEveryReferenceModel) {
  size_t opened = 0;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    if (!entry.is_directory() || entry.path().filename() == "smollm2") continue;
    const auto c = good(entry.path());
    ASSERT_NE(c, nullptr) << entry.path();
    EXPECT_EQ(c->fingerprint().size(), 32u);
    EXPECT_THAT(c->warnings(), IsEmpty()) << entry.path();
    EXPECT_EQ(c->summary().tensors, expected_tensors(c->config()).size());
    for (const TensorSpec& spec : expected_tensors(c->config())) {
      const auto t = c->tensor(spec.name);
      ASSERT_TRUE(t) << t.error().to_string();
      EXPECT_EQ(t->view.shape, spec.shape);
      EXPECT_EQ(t->view.bytes.size(),
                storage_bytes(t->view.type, static_cast<size_t>(t->view.elements())));
    }
    ++opened;
  }
  EXPECT_GE(opened, 27u);
}

TEST(Checkpoint, OpensTheRealModel) {
  const char* path = std::getenv("TANDEM_SMOLLM2");
  if (path == nullptr) GTEST_SKIP() << "TANDEM_SMOLLM2 names no file";
  const auto c = good(path);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->config().describe(),
            "llama, 30 layers, hidden 576, 9/3 heads of 64, context 8192, vocabulary 49152");
  EXPECT_TRUE(c->config().tied_head);
  EXPECT_THAT(c->config().eos, ElementsAre(2));
  EXPECT_EQ(
      c->summary().describe(),
      "gguf, 272 tensors, 134.5 M parameters, 92.1 MiB stored (f32 0.1, q8_0 28.7, q4_1 63.3)");
  const SteadyClock clock;
  const auto text = load_text(*c, clock);
  ASSERT_TRUE(text) << text.error().to_string();
  EXPECT_EQ(*text->tokenizer->encode("Hello world"), (std::vector<TokenId>{19556, 905}));
  EXPECT_NE(text->chat_template, nullptr);
}

TEST(Checkpoint, LoadsTheTextOfAFolder) {
  const auto c = good(TANDEM_MODELS "/chat-6m");
  const SteadyClock clock;
  const auto text = load_text(*c, clock);
  ASSERT_TRUE(text) << text.error().to_string();
  EXPECT_LE(text->tokenizer->vocab_size(), c->config().vocab);
}

// ---- Hugging Face folders ----

// cases.md 26: the shapes that do not fit are both named.
TEST(CheckpointFolder, HeadDimAbsentOrNullNamesTensorAndBothShapes) {
  for (const char* with : {"", "\"head_dim\": null,"}) {
    TempFolder f;
    f.copy(kGolden / "llama_biases");
    f.write("config.json", replaced(read_all(f.path() / "config.json"), "\"head_dim\": 16,", with));
    EXPECT_THAT(refusal(f.path(), ErrorCode::kMismatch),
                AllOf(HasSubstr("model.layers.0.self_attn.q_proj.weight"), HasSubstr("[64, 48]"),
                      HasSubstr("[48, 48]")));
  }
}

// cases.md 28, second half: all bias tensors are left out, with one warning that says so.
TEST(CheckpointFolder, BiasesWithoutTheirFlagsAreLeftOutWithAWarning) {
  TempFolder f;
  f.copy(kGolden / "llama_biases");
  std::string config = read_all(f.path() / "config.json");
  config = replaced(config, "\"attention_bias\": true", "\"attention_bias\": false");
  f.write("config.json", replaced(config, "\"mlp_bias\": true", "\"mlp_bias\": false"));
  const auto c = good(f.path());
  ASSERT_EQ(c->warnings().size(), 1u);
  EXPECT_THAT(c->warnings()[0],
              AllOf(HasSubstr("14 tensors are not used"), HasSubstr("proj.bias")));
  EXPECT_FALSE(c->contains("model.layers.0.self_attn.q_proj.bias"));
}

// Here, before any engine sees it: no engine may read past an expert that is smaller than the
// others.
TEST(CheckpointFolder, ExpertOfAnotherShapeIsNamedWithBothShapes) {
  const std::pair<const char*, const char*> wrong[] = {{"down_proj", R"("shape":[64,48])"},
                                                       {"gate_proj", R"("shape":[48,64])"},
                                                       {"up_proj", R"("shape":[48,64])"}};
  for (const auto& [part, shape] : wrong) {
    TempFolder f;
    f.copy(kGolden / "qwen3_moe");
    const std::string name = "model.layers.0.mlp.experts.1." + std::string(part) + ".weight";
    const std::string before = "\"" + name + R"(":{"dtype":"F32",)" + shape;
    const std::string after = "\"" + name + R"(":{"dtype":"F32","shape":[96,32])";
    f.write("model.safetensors", replaced(read_all(f.path() / "model.safetensors"), before, after));
    EXPECT_THAT(refusal(f.path(), ErrorCode::kMismatch),
                AllOf(HasSubstr(name), HasSubstr("[96, 32]"),
                      HasSubstr("the model's configuration needs")));
  }
}

TEST(CheckpointFolder, MissingTensorIsNamed) {
  TempFolder f;
  f.copy(kGolden / "mistral_window");
  f.write("config.json", replaced(read_all(f.path() / "config.json"), "\"num_hidden_layers\": 2",
                                  "\"num_hidden_layers\": 3"));
  EXPECT_THAT(
      refusal(f.path(), ErrorCode::kMismatch),
      AllOf(HasSubstr("model.layers.2.input_layernorm.weight is missing"), HasSubstr("[32]")));
}

TEST(CheckpointFolder, UntiedHeadMustBeThereTiedOneNeedNot) {
  TempFolder f;
  f.copy(kGolden / "llama_linear_tied");
  EXPECT_TRUE(good(f.path())->config().tied_head);
  f.write("config.json",
          replaced(read_all(f.path() / "config.json"), "\"tie_word_embeddings\": true",
                   "\"tie_word_embeddings\": false"));
  EXPECT_THAT(refusal(f.path(), ErrorCode::kMismatch), HasSubstr("lm_head.weight is missing"));
}

// A folder whose config ties, with a head of its own in the file.
class TiedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    f_.copy(kGolden / "llama_linear_tied");
    const std::string file = read_all(f_.path() / "model.safetensors");
    std::memcpy(&length_, file.data(), 8);
    header_ = file.substr(8, length_);
    data_ = file.substr(8 + length_);
  }
  void write_with_head(const std::string& head) {
    const std::string entry =
        R"({"lm_head.weight":{"dtype":"BF16","shape":[96,32],"data_offsets":[)" +
        std::to_string(data_.size()) + "," + std::to_string(data_.size() + head.size()) + "]},";
    f_.write("model.safetensors", safetensors_file(entry + header_.substr(1), data_ + head));
  }
  TempFolder f_;
  uint64_t length_ = 0;
  std::string header_;
  std::string data_;
};

TEST_F(TiedFolder, EqualHeadIsTheTable) {
  const auto tied = good(f_.path());
  const auto table = tied->tensor("model.embed_tokens.weight");
  const auto* bytes = reinterpret_cast<const char*>(table->view.bytes.data());
  write_with_head(std::string(bytes, table->view.bytes.size()));
  const auto c = good(f_.path());
  EXPECT_TRUE(c->config().tied_head);
  EXPECT_THAT(c->warnings(), IsEmpty());
}

TEST_F(TiedFolder, AnotherHeadStaysItsOwnWithAWarning) {
  write_with_head(std::string(96 * 32 * 2, '\1'));
  const auto c = good(f_.path());
  EXPECT_FALSE(c->config().tied_head);
  EXPECT_TRUE(c->contains("lm_head.weight"));
  EXPECT_THAT(c->warnings(), ElementsAre(HasSubstr("lm_head.weight differs")));
}

TEST_F(TiedFolder, HeadAloneServesAsTheTable) {
  f_.write("model.safetensors",
           safetensors_file(
               replaced(header_, "\"model.embed_tokens.weight\"", "\"lm_head.weight\""), data_));
  EXPECT_TRUE(good(f_.path())->contains("model.embed_tokens.weight"));
}

TEST(CheckpointFolder, TruncatedWeights) {
  TempFolder f;
  f.copy(kGolden / "mistral_window");
  const std::string whole = read_all(f.path() / "model.safetensors");
  for (const size_t n : {size_t{0}, size_t{4}, size_t{500}, whole.size() / 2, whole.size() - 1}) {
    f.write("model.safetensors", whole.substr(0, n));
    EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData), HasSubstr("model.safetensors")) << n;
  }
}

TEST(CheckpointFolder, ShardsThatAreMissingForeignOrLying) {
  TempFolder f;
  f.copy(kGolden / "llama_llama3_sharded");
  EXPECT_EQ(good(f.path())->fingerprint(), good(kGolden / "llama_llama3_sharded")->fingerprint());
  const std::string index = read_all(f.path() / "model.safetensors.index.json");
  const std::string first = "\"model-00001-of-00002.safetensors\"";
  f.write("model.safetensors.index.json", replaced(index, first, "\"../x.safetensors\""));
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData),
              HasSubstr("not a file name beside the index"));
  f.write("model.safetensors.index.json", replaced(index, first, "\"/etc/passwd\""));
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData), HasSubstr("not a file name"));
  f.write("model.safetensors.index.json", replaced(index, first, "7"));
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData), HasSubstr("must be a file name"));
  f.write("model.safetensors.index.json",
          replaced(index, first, "\"model-00002-of-00002.safetensors\""));
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData), HasSubstr("has no tensor"));
  f.write("model.safetensors.index.json", R"({"metadata": {}})");
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData), HasSubstr("weight_map"));
  f.write("model.safetensors.index.json", index);
  fs::remove(f.path() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(refusal(f.path(), ErrorCode::kNotFound),
              HasSubstr("model-00002-of-00002.safetensors: shard is missing"));
}

TEST(CheckpointFolder, ATensorInTwoShards) {
  TempFolder f;
  f.copy(kGolden / "llama_llama3_sharded");
  fs::copy_file(f.path() / "model-00001-of-00002.safetensors",
                f.path() / "model-00002-of-00002.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData), HasSubstr("is also in"));
}

TEST(CheckpointFolder, UnreadTypeOfAUsedTensorIsNamed) {
  TempFolder f;
  f.copy(kGolden / "mistral_window");
  // The norm's 32 float32 become 16 float64: same bytes, and first the shape is wrong, then the
  // type.
  std::string weights = read_all(f.path() / "model.safetensors");
  weights = replaced(weights, R"("model.norm.weight":{"dtype":"F32")",
                     R"("model.norm.weight":{"dtype":"I32")");
  f.write("model.safetensors", weights);
  EXPECT_THAT(refusal(f.path(), ErrorCode::kUnsupported),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("I32")));
}

TEST(CheckpointFolder, WeightsThatLieOddlyAreAlignedForTheEngine) {
  TempFolder f;
  f.copy(kGolden / "mistral_window");
  std::string file = read_all(f.path() / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  std::string odd = file.substr(8, header) + " ";  // legal: JSON may end in spaces
  while (odd.size() % 4 != 1) odd += ' ';
  f.write("model.safetensors", safetensors_file(odd, file.substr(8 + header)));
  const auto c = good(f.path());
  const auto reference = good(kGolden / "mistral_window");
  const auto t = c->tensor("model.layers.0.self_attn.q_proj.weight");
  ASSERT_TRUE(t);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t->view.bytes.data()) % 4, 0u);
  EXPECT_TRUE(std::ranges::equal(
      t->view.bytes, reference->tensor("model.layers.0.self_attn.q_proj.weight")->view.bytes));
  EXPECT_EQ(c->fingerprint(), reference->fingerprint());
}

TEST(CheckpointFolder, BaseModelNamesWithoutPrefix) {
  TempFolder f;
  f.copy(kGolden / "llama_linear_tied");
  std::string file = read_all(f.path() / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  std::string header = file.substr(8, length);
  for (size_t at; (at = header.find("\"model.")) != std::string::npos;) header.erase(at + 1, 6);
  f.write("model.safetensors", safetensors_file(header, file.substr(8 + length)));
  good(f.path());
}

TEST(CheckpointFolder, WhatIsNotThereIsSaidPlainly) {
  EXPECT_THAT(refusal("/nonexistent/model", ErrorCode::kNotFound),
              HasSubstr("no such file or folder"));
  TempFolder f;
  EXPECT_THAT(refusal(f.path(), ErrorCode::kNotFound),
              HasSubstr("neither config.json nor a .gguf file"));
  f.write("config.json", read_all(kGolden / "mistral_window/config.json"));
  EXPECT_THAT(refusal(f.path(), ErrorCode::kNotFound), HasSubstr("has no model.safetensors"));
  f.write("pytorch_model.bin", "x");
  EXPECT_THAT(refusal(f.path(), ErrorCode::kUnsupported), HasSubstr("convert them to safetensors"));
  f.write("config.json", "{");
  EXPECT_THAT(refusal(f.path(), ErrorCode::kCorruptData),
              HasSubstr("config.json: is not valid JSON"));
}

TEST(CheckpointFolder, ConfigJsonItselfNamesItsFolder) {
  EXPECT_EQ(good(kGolden / "mistral_window/config.json")->fingerprint(),
            good(kGolden / "mistral_window")->fingerprint());
}

// ---- dummy weights ----

TEST(CheckpointDummy, NeedsOnlyConfigJson) {
  TempFolder f;
  f.write("config.json", read_all(kGolden / "qwen3_moe_sparse/config.json"));
  CheckpointOptions options;
  options.format = LoadFormat::kDummy;
  const auto c = good(f.path(), options);
  EXPECT_EQ(c->summary().format, "dummy");
  const auto t = c->tensor("model.embed_tokens.weight");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->view.type, StorageType::kBf16);
  double sum = 0;
  double squares = 0;
  std::vector<float> row(32);
  for (int64_t r = 0; r < t->view.rows(); ++r) {
    read_row(t->view, r, row);
    for (const float x : row) {
      sum += static_cast<double>(x);
      squares += static_cast<double>(x) * static_cast<double>(x);
    }
  }
  const double n = static_cast<double>(t->view.elements());
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.001);
  EXPECT_NEAR(sum / n, 0, 0.001);
  read_row(c->tensor("model.norm.weight")->view, 0, row);
  EXPECT_THAT(row, ::testing::Each(1.0F));
  // The same again, and other numbers in another tensor or for another seed.
  const auto same_bytes = [](const CheckpointTensor& a, const CheckpointTensor& b) {
    return std::ranges::equal(a.view.bytes, b.view.bytes);
  };
  const std::string k = "model.layers.0.self_attn.k_proj.weight";
  const std::string v = "model.layers.0.self_attn.v_proj.weight";
  EXPECT_TRUE(same_bytes(*c->tensor(k), *c->tensor(k)));
  EXPECT_FALSE(same_bytes(*c->tensor(k), *c->tensor(v)));
  options.dummy_seed = 1;
  const auto other = good(f.path(), options);
  EXPECT_FALSE(same_bytes(*c->tensor(k), *other->tensor(k)));
  EXPECT_NE(c->fingerprint(), other->fingerprint());
  EXPECT_THAT(refusal(kGolden / "gguf_q8_0", ErrorCode::kInvalidArgument, options),
              HasSubstr("dummy"));
}

// A large model is described without memory for its weights.
TEST(CheckpointDummy, ASeventyBillionModelOpensAtOnce) {
  TempFolder f;
  f.write("config.json", R"({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256})");
  CheckpointOptions options;
  options.format = LoadFormat::kDummy;
  EXPECT_GT(good(f.path(), options)->summary().parameters, 70'000'000'000u);
}

TEST(CheckpointDummy, FormatNames) {
  EXPECT_EQ(*parse_load_format("auto"), LoadFormat::kAuto);
  EXPECT_EQ(*parse_load_format("dummy"), LoadFormat::kDummy);
  EXPECT_THAT(parse_load_format("Dummy").error().detail, HasSubstr("use auto or dummy"));
}

// ---- fingerprint ----

TEST(CheckpointFingerprint, ChangesWithConfigAndContent) {
  TempFolder f;
  f.copy(kGolden / "mistral_window");
  const std::string base = good(f.path())->fingerprint();
  EXPECT_EQ(base, good(kGolden / "mistral_window")->fingerprint());
  const std::string config = read_all(f.path() / "config.json");
  f.write("config.json", replaced(config, "\"sliding_window\": 8", "\"sliding_window\": 9"));
  EXPECT_NE(good(f.path())->fingerprint(), base);
  f.write("config.json", config);
  std::string weights = read_all(f.path() / "model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  f.write("model.safetensors", weights);
  EXPECT_NE(good(f.path())->fingerprint(), base);
}

// ---- GGUF ----

GgufBuilder tiny_gguf(const std::string& architecture = "llama") {
  GgufBuilder b;
  const std::string a = architecture + ".";
  b.string("general.architecture", architecture);
  b.u32(a + "block_count", 1).u32(a + "embedding_length", 32).u32(a + "context_length", 64);
  b.u32(a + "feed_forward_length", 32).u32(a + "attention.head_count", 2);
  b.f32(a + "attention.layer_norm_rms_epsilon", 1e-5F);
  b.u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.eot_token_id", 5);
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
    uint64_t n = 4;
    for (const uint64_t d : dims) n *= d;
    b.tensors.push_back({name, std::move(dims), 0, std::string(n, '\0')});
  };
  add("token_embd.weight", {32, 10});
  add("output_norm.weight", {32});
  for (const char* name :
       {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    add(std::string("blk.0.") + name + ".weight", {32, 32});
  for (const char* name : {"attn_norm", "ffn_norm"})
    add(std::string("blk.0.") + name + ".weight", {32});
  return b;
}

TEST(CheckpointGguf, ReadsTheConfigOffTheMetadata) {
  TempFolder f;
  const auto c = good(f.write("m.gguf", tiny_gguf().build()));
  const ModelConfig& config = c->config();
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.vocab, 10u);
  EXPECT_EQ(config.kv_heads, 2u);  // absent: as many as heads
  EXPECT_EQ(config.head_dim, 16u);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_TRUE(config.tied_head);
  EXPECT_THAT(config.eos, ElementsAre(2, 5));
  EXPECT_NE(c->gguf(), nullptr);
  // Only the llama family's q and k are stored for interleaved rope.
  EXPECT_EQ(c->tensor("model.layers.0.self_attn.q_proj.weight")->view.interleaved_heads, 2u);
  EXPECT_EQ(c->tensor("model.layers.0.self_attn.v_proj.weight")->view.interleaved_heads, 0u);
  EXPECT_EQ(c->tensor("model.layers.0.self_attn.q_proj.weight")->view.name, "blk.0.attn_q.weight");
}

TEST(CheckpointGguf, MissingAndSenselessKeysAreNamed) {
  TempFolder f;
  const auto with = [&](const GgufBuilder& b, std::optional<ErrorCode> code = {}) {
    return refusal(f.write("m.gguf", b.build()), code);
  };
  EXPECT_THAT(with(GgufBuilder{}, ErrorCode::kCorruptData),
              HasSubstr("general.architecture is missing"));
  EXPECT_THAT(with(tiny_gguf("gemma3"), ErrorCode::kUnsupported),
              AllOf(HasSubstr("gemma3"), HasSubstr("qwen3")));
  GgufBuilder b;
  b.string("general.architecture", "qwen2");
  EXPECT_THAT(with(b, ErrorCode::kCorruptData), HasSubstr("qwen2.block_count is missing"));
  EXPECT_THAT(with(tiny_gguf().u32("llama.attention.head_count_kv", 0), ErrorCode::kCorruptData),
              HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with(tiny_gguf().u32("llama.rope.dimension_count", 8), ErrorCode::kUnsupported),
              HasSubstr("llama.rope.dimension_count"));
  EXPECT_THAT(
      with(tiny_gguf().string("llama.rope.scaling.type", "longrope"), ErrorCode::kUnsupported),
      HasSubstr("longrope"));
  EXPECT_THAT(with(tiny_gguf().u32("llama.expert_count", 8), ErrorCode::kUnsupported),
              HasSubstr("llama.expert_count"));
  EXPECT_THAT(with(tiny_gguf().string("llama.rope.freq_base", "x"), ErrorCode::kCorruptData),
              HasSubstr("llama.rope.freq_base must be a number"));
  EXPECT_THAT(
      with(tiny_gguf().u32("llama.attention.key_length", 8), ErrorCode::kMismatch),
      AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("[32, 32]"), HasSubstr("[16, 32]")));
}

TEST(CheckpointGguf, MissingTensorIsNamedInBothLanguages) {
  TempFolder f;
  GgufBuilder b = tiny_gguf();
  std::erase_if(b.tensors, [](const auto& t) { return t.name == "blk.0.attn_v.weight"; });
  EXPECT_THAT(
      refusal(f.write("m.gguf", b.build()), ErrorCode::kMismatch),
      AllOf(HasSubstr("blk.0.attn_v.weight"), HasSubstr("model.layers.0.self_attn.v_proj.weight")));
}

TEST(CheckpointGguf, LayersBeyondTheirNumberAreNotLeftOut) {
  TempFolder f;
  GgufBuilder b = tiny_gguf();
  b.tensors.push_back({"blk.1.attn_norm.weight", {32}, 0, std::string(128, 'x')});
  EXPECT_THAT(refusal(f.write("m.gguf", b.build()), ErrorCode::kCorruptData),
              HasSubstr("block_count is 1, but there is a tensor blk.1.attn_norm.weight"));
}

// Half of the biases would be half of an answer.
TEST(CheckpointGguf, BiasesInSomePlacesAreWantedInAll) {
  TempFolder f;
  GgufBuilder b = tiny_gguf();
  b.tensors.push_back({"blk.0.attn_k.bias", {32}, 0, std::string(128, 'x')});
  EXPECT_THAT(refusal(f.write("m.gguf", b.build()), ErrorCode::kMismatch),
              HasSubstr("blk.0.attn_q.bias"));
}

TEST(CheckpointGguf, UnreadTypeIsNamedExtrasAreNot) {
  TempFolder f;
  GgufBuilder b = tiny_gguf();
  b.tensors.push_back({"extra.weight", {256}, 12, std::string(144, 'x')});
  EXPECT_THAT(good(f.write("m.gguf", b.build()))->warnings(),
              ElementsAre(HasSubstr("extra.weight")));
  for (auto& t : b.tensors)
    if (t.name == "blk.0.ffn_up.weight") t.type = 14;
  EXPECT_THAT(refusal(f.write("m.gguf", b.build()), ErrorCode::kUnsupported),
              AllOf(HasSubstr("blk.0.ffn_up.weight"), HasSubstr("Q6_K")));
}

TEST(CheckpointGguf, RopeFreqsMustFitHalfAHead) {
  TempFolder f;
  GgufBuilder b = tiny_gguf();
  b.tensors.push_back({"rope_freqs.weight", {4}, 0, std::string(16, '\0')});
  EXPECT_THAT(refusal(f.write("m.gguf", b.build()), ErrorCode::kMismatch),
              HasSubstr("rope_freqs.weight"));
  b.tensors.back() = {"rope_freqs.weight", {8}, 0, std::string(32, '\0')};
  EXPECT_THAT(refusal(f.write("m.gguf", b.build()), ErrorCode::kCorruptData), HasSubstr("above 0"));
}

// cases.md 31 through the whole loader: one line, no abort; 64 loads as 32 does.
TEST(CheckpointGguf, Alignment) {
  TempFolder f;
  GgufBuilder b = tiny_gguf();
  b.scalar<int32_t>("general.alignment", 5, 32);
  EXPECT_THAT(refusal(f.write("m.gguf", b.build()), ErrorCode::kCorruptData),
              HasSubstr("general.alignment"));
  const std::string plain = good(f.write("m.gguf", tiny_gguf().build()))->fingerprint();
  b = tiny_gguf();
  b.alignment = 64;
  b.u32("general.alignment", 64);
  EXPECT_EQ(good(f.write("m.gguf", b.build()))->fingerprint(), plain);
}

// cases.md 32: starting a split model from the wrong part.
class SplitGguf : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.copy(kGolden / "gguf_qwen3_split");
    for (const char* name : {"golden.json", "golden.safetensors"})
      fs::remove(folder_.path() / name);
  }
  [[nodiscard]] fs::path part(int i) const {
    return folder_.path() / ("model-0000" + std::to_string(i) + "-of-00003.gguf");
  }
  TempFolder folder_;
};

TEST_F(SplitGguf, PartOneAndTheFolderLoadAll) {
  const auto c = good(part(1));
  EXPECT_EQ(c->summary().tensors, expected_tensors(c->config()).size());
  EXPECT_EQ(good(folder_.path())->fingerprint(), c->fingerprint());
  EXPECT_EQ(good(folder_.path())->path(), part(1));
}

TEST_F(SplitGguf, AnotherPartIsRefusedWithAHint) {
  EXPECT_THAT(refusal(part(2), ErrorCode::kInvalidArgument),
              AllOf(HasSubstr("part 2 of 3"), HasSubstr("open part 1, model-00001-of-00003.gguf")));
}

TEST_F(SplitGguf, AMissingPartIsNamed) {
  fs::remove(part(3));
  EXPECT_THAT(refusal(part(1), ErrorCode::kNotFound),
              HasSubstr("model-00003-of-00003.gguf: part 3 of 3 is missing"));
  fs::remove(part(1));
  EXPECT_THAT(refusal(folder_.path(), ErrorCode::kNotFound), HasSubstr("part 1"));
}

TEST_F(SplitGguf, RenamedPartsAreNotGuessed) {
  fs::rename(part(1), folder_.path() / "a.gguf");
  EXPECT_THAT(refusal(folder_.path() / "a.gguf", ErrorCode::kInvalidArgument),
              AllOf(HasSubstr("part 1 of 3"), HasSubstr("-00001-of-00003.gguf")));
  fs::rename(part(2), part(1));  // part 2 under part 1's name
  EXPECT_THAT(refusal(part(1), ErrorCode::kInvalidArgument), HasSubstr("part 2 of 3"));
}

TEST_F(SplitGguf, PartsOfAnotherModelAreNoticed) {
  fs::copy_file(part(3), part(2), fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(part(1), ErrorCode::kMismatch),
              HasSubstr("says it is part 3 of 3, its name says part 2 of 3"));
}

// The fuzzer starts from these: if they did not open, it would only ever see the first check.
TEST(CheckpointGguf, SeedsOfTheFuzzerOpen) {
  size_t opened = 0;
  for (const auto& entry : fs::directory_iterator(TANDEM_TEST_DATA "/../fuzz/corpus/gguf")) {
    good(entry.path());
    ++opened;
  }
  EXPECT_GE(opened, 3u);
}

TEST(CheckpointGguf, FolderWithSeveralModelsAsksWhich) {
  TempFolder f;
  f.write("a.gguf", tiny_gguf().build());
  f.write("b.gguf", tiny_gguf().build());
  EXPECT_THAT(refusal(f.path(), ErrorCode::kInvalidArgument), HasSubstr("a.gguf, b.gguf"));
}

TEST(CheckpointGguf, TruncatedAnywhere) {
  TempFolder f;
  const std::string whole = tiny_gguf().build();
  for (size_t n = 0; n < whole.size(); n += 97)
    EXPECT_THAT(refusal(f.write("m.gguf", whole.substr(0, n))), HasSubstr("m.gguf")) << n;
}

}  // namespace
}  // namespace tandem::model
