#include "common/model/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/gguf.h"
#include "tests/unit/model/test_files.h"

namespace tandem::model {
namespace {

using tandem::testing::GgufBuilder;
using ::testing::HasSubstr;

TEST(SamplingDefaults, AreThoseOfTheFileAsPublished) {
  // generation_config.json of Qwen2.5-7B-Instruct.
  const auto qwen = parse_generation_config(
      R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
          "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7,
          "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0"})",
      "g.json");
  ASSERT_TRUE(qwen) << qwen.error().to_string();
  EXPECT_EQ(qwen->temperature, 0.7);
  EXPECT_EQ(qwen->top_p, 0.8);
  EXPECT_EQ(qwen->top_k, 20u);
  EXPECT_EQ(qwen->repetition_penalty, 1.05);
  EXPECT_FALSE(qwen->min_p);
  EXPECT_FALSE(qwen->max_new_tokens);
}

TEST(SamplingDefaults, NullAndAbsentSayNothing) {
  const auto none = parse_generation_config(
      R"({"eos_token_id": 2, "do_sample": false, "temperature": null, "top_k": -1,
          "max_new_tokens": 256, "min_p": 0.05})",
      "g.json");
  ASSERT_TRUE(none) << none.error().to_string();
  EXPECT_FALSE(none->temperature);
  EXPECT_FALSE(none->top_p);
  EXPECT_EQ(none->top_k, 0u);  // off
  EXPECT_EQ(none->max_new_tokens, 256u);
  EXPECT_EQ(none->min_p, 0.05);
}

TEST(SamplingDefaults, NonsenseIsNamed) {
  for (const auto& [text, field] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"temperature": "hot"})", "g.json: temperature"},
           {R"({"temperature": -0.1})", "g.json: temperature"},
           {R"({"top_p": 1.5})", "g.json: top_p"},
           {R"({"top_k": -2})", "g.json: top_k"},
           {R"({"top_k": 1.5})", "g.json: top_k"},
           {R"({"min_p": [0]})", "g.json: min_p"},
           {R"({"repetition_penalty": 0})", "g.json: repetition_penalty"},
           {R"({"max_new_tokens": 0})", "g.json: max_new_tokens"},
           {R"([])", "g.json: must be"},
           {R"({"temperature": )", "g.json"}}) {
    const auto read = parse_generation_config(text, "g.json");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruptData);
    EXPECT_THAT(read.error().detail, HasSubstr(field));
  }
}

TEST(SamplingDefaults, GgufFilesCarryThemInTheirMetadata) {
  GgufBuilder builder;
  builder.string("general.architecture", "llama")
      .f32("general.sampling.temp", 0.5F)
      .f32("general.sampling.top_p", 0.75F)
      .scalar<int32_t>("general.sampling.top_k", 5, 64)
      .f32("general.sampling.penalty_repeat", 1.25F);
  const std::string bytes = builder.build();
  const auto file = GgufFile::parse(std::as_bytes(std::span(bytes)), "m.gguf");
  ASSERT_TRUE(file) << file.error().to_string();
  const auto read = gguf_sampling_defaults(*file);
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->temperature, 0.5);
  EXPECT_EQ(read->top_p, 0.75);
  EXPECT_EQ(read->top_k, 64u);
  EXPECT_EQ(read->repetition_penalty, 1.25);
  EXPECT_FALSE(read->min_p);
}

}  // namespace
}  // namespace tandem::model
