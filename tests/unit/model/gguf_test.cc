#include "common/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/model/text.h"
#include "tests/unit/model/test_files.h"

namespace tandem::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::put;

// The parse keeps views into the bytes, so both travel together.
struct Parsed {
  std::string bytes;
  Result<GgufFile> file;
};
std::unique_ptr<Parsed> parse(std::string bytes) {
  auto p =
      std::make_unique<Parsed>(Parsed{std::move(bytes), fail(ErrorCode::kInternal, "not parsed")});
  p->file = GgufFile::parse(std::as_bytes(std::span(p->bytes)), "m.gguf");
  return p;
}
std::string refusal(const std::string& bytes, ErrorCode code = ErrorCode::kCorruptData) {
  const auto p = parse(bytes);
  if (p->file) return "was accepted";
  EXPECT_EQ(p->file.error().code, code) << p->file.error().detail;
  EXPECT_THAT(p->file.error().detail, HasSubstr("m.gguf"));
  EXPECT_THAT(p->file.error().detail, ::testing::Not(HasSubstr("\n")));
  return p->file.error().detail;
}

GgufBuilder small() {
  GgufBuilder b;
  b.string("general.architecture", "llama").u32("a.number", 7).f32("a.float", 0.5F);
  b.strings("a.strings", {"x", "", "long string"});
  b.tensors.push_back({"t", {32, 2}, 8, std::string(68, '\1')});
  b.tensors.push_back({"u", {3}, 0, std::string(12, '\2')});
  return b;
}

TEST(Gguf, ReadsValuesAndTensorsOfBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder b = small();
    b.version = version;
    const auto p = parse(b.build());
    ASSERT_TRUE(p->file) << p->file.error().to_string();
    const GgufFile& f = *p->file;
    EXPECT_EQ(f.version(), version);
    EXPECT_EQ(*f.string("general.architecture"), "llama");
    EXPECT_EQ(*f.integer("a.number"), 7);
    EXPECT_EQ(*f.number("a.float"), 0.5);
    EXPECT_THAT(**f.strings("a.strings"), ElementsAre("x", "", "long string"));
    EXPECT_EQ(*f.integer("absent"), std::nullopt);
    ASSERT_EQ(f.tensors().size(), 2u);
    EXPECT_EQ(f.tensors()[0].type, StorageType::kQ8_0);
    EXPECT_THAT(f.tensors()[0].shape, ElementsAre(2, 32));  // outermost first
    EXPECT_EQ(f.tensors()[1].bytes[0], std::byte{2});
  }
}

TEST(Gguf, TypedReadsNameTheKeyAndTheTypeFound) {
  const auto p = parse(small().build());
  const GgufFile& f = *p->file;
  EXPECT_THAT(f.integer("a.float").error().detail, AllOf(HasSubstr("a.float"), HasSubstr("f32")));
  EXPECT_THAT(f.string("a.number").error().detail, HasSubstr("must be a string, is of type u32"));
  EXPECT_THAT(f.strings("a.number").error().detail, HasSubstr("must be an array"));
  EXPECT_THAT(f.integers("a.strings").error().detail, HasSubstr("whole numbers"));
  EXPECT_THAT(f.boolean("a.number").error().detail, HasSubstr("bool"));
  EXPECT_THAT(f.u32("a.number", 8, 9).error().detail, HasSubstr("between 8 and 9, is 7"));
}

TEST(Gguf, TruncationAnywhereIsAnError) {
  const std::string whole = small().build();
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(parse(whole.substr(0, n))->file) << n;
  EXPECT_TRUE(parse(whole)->file);
}

TEST(Gguf, WrongMagicVersionAndByteOrder) {
  EXPECT_THAT(refusal("GGML" + small().build().substr(4)), HasSubstr("not a GGUF file"));
  for (const uint32_t version : {0u, 1u, 4u}) {
    GgufBuilder b = small();
    b.version = version;
    EXPECT_THAT(refusal(b.build(), ErrorCode::kUnsupported),
                HasSubstr("version " + std::to_string(version)));
  }
  GgufBuilder b = small();
  b.version = 0x03000000;
  EXPECT_THAT(refusal(b.build(), ErrorCode::kUnsupported), HasSubstr("big-endian"));
}

TEST(Gguf, CountsThatLieAreRefusedBeforeAnythingIsReserved) {
  GgufBuilder b = small();
  b.claim_tensors = INT64_MAX;
  EXPECT_THAT(refusal(b.build()), HasSubstr("claims 9223372036854775807 tensors"));
  b = small();
  b.claim_values = 1'000'000'000;
  EXPECT_THAT(refusal(b.build()), HasSubstr("claims 1000000000 metadata entries"));
  b = small();
  b.claim_values = 5;  // reads into the tensor table
  EXPECT_FALSE(parse(b.build())->file);
  std::string array;
  put<uint32_t>(array, 8);
  put<uint64_t>(array, UINT64_MAX);
  EXPECT_THAT(refusal(small().raw("k", 9, array).build()),
              HasSubstr("claims 18446744073709551615 elements"));
  std::string text;
  put<uint64_t>(text, UINT64_MAX - 4);
  EXPECT_THAT(refusal(small().raw("k", 8, text).build()), HasSubstr("runs past the end"));
}

TEST(Gguf, NestedArraysAreBounded) {
  std::string deep;
  for (int i = 0; i < 6; ++i) {
    put<uint32_t>(deep, 9);
    put<uint64_t>(deep, 1);
  }
  EXPECT_THAT(refusal(small().raw("k", 9, deep + std::string(64, '\0')).build()),
              HasSubstr("deeper"));
}

TEST(Gguf, DuplicateKeysAndTensors) {
  EXPECT_THAT(refusal(small().u32("a.number", 8).build()), HasSubstr("a.number appears twice"));
  GgufBuilder b = small();
  b.tensors.push_back(b.tensors[0]);
  EXPECT_THAT(refusal(b.build()), HasSubstr("tensor t appears twice"));
}

TEST(Gguf, UnknownTypesOfValuesAndBools) {
  EXPECT_THAT(refusal(small().raw("k", 13, "x").build()), HasSubstr("unknown type 13"));
  EXPECT_THAT(refusal(small().raw("k", 7, "\2").build()), HasSubstr("bool of value 2"));
}

TEST(Gguf, TensorsThatLie) {
  const auto with = [](GgufBuilder::Tensor t) {
    GgufBuilder b = small();
    b.tensors.push_back(std::move(t));
    return b.build();
  };
  EXPECT_THAT(refusal(with({"bad", {}, 0, ""})), HasSubstr("tensor bad has 0 dimensions"));
  EXPECT_THAT(refusal(with({"bad", {1, 1, 1, 1, 1}, 0, "1234"})), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal(with({"bad", {0, 4}, 0, ""})), HasSubstr("size 0"));
  EXPECT_THAT(refusal(with({"bad", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, ""})),
              HasSubstr("more elements"));
  EXPECT_THAT(refusal(with({"bad", {uint64_t{1} << 57}, 0, ""})), HasSubstr("truncated"));
  EXPECT_THAT(refusal(with({"bad", {31}, 8, std::string(34, 'x')})), HasSubstr("multiple of 32"));
  EXPECT_THAT(refusal(with({"bad", {8}, 0, std::string(32, 'x'), 32 * 1000})),
              HasSubstr("bad needs bytes 32000"));
  EXPECT_THAT(refusal(with({"bad", {8}, 0, std::string(32, 'x'), 33})),
              HasSubstr("multiple of the alignment"));
  EXPECT_THAT(refusal(with({"bad", {8}, 0, std::string(32, 'x'), 0})), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(with({"bad", {8}, 0, std::string(32, 'x'), INT64_MAX - 31})),
              HasSubstr("bad needs bytes"));
  EXPECT_THAT(refusal(with({std::string(5000, 'n'), {8}, 0, std::string(32, 'x')})),
              HasSubstr("claims 5000 bytes"));
}

TEST(Gguf, TensorsThatDoNotFillTheirPlace) {
  // A type or shape that needs less than was written: what follows no longer lies where it should.
  const auto with = [](std::vector<GgufBuilder::Tensor> tensors) {
    GgufBuilder b;
    b.string("general.architecture", "llama");
    b.tensors = std::move(tensors);
    return b.build();
  };
  const std::string bytes(128, 'x');
  EXPECT_THAT(refusal(with({{"a", {32}, 1, bytes}, {"b", {32}, 0, bytes}})),
              HasSubstr("tensor b begins 64 bytes after a; the type, shape or offset"));
  EXPECT_THAT(refusal(with({{"a", {32}, 0, bytes}, {"b", {8}, 0, bytes}})),
              HasSubstr("96 bytes follow the last tensor, b"));
  EXPECT_THAT(refusal(with({{"a", {32}, 0, bytes + bytes, 128}})),
              HasSubstr("tensor a begins 128 bytes after the data's beginning"));
  // In any order, padded or not, and behind a type whose size is not known here.
  for (const auto& good :
       {with({{"b", {8}, 0, bytes, 128}, {"a", {32}, 0, bytes.substr(0, 32), 0}}),
        with({{"a", {7}, 0, bytes.substr(0, 28)}, {"b", {32}, 0, bytes}}),
        with({{"k", {256}, 12, bytes}, {"b", {32}, 0, bytes}})})
    EXPECT_TRUE(parse(good)->file) << parse(good)->file.error().to_string();
}

TEST(Gguf, UnreadTypesAreKeptAndNamed) {
  GgufBuilder b = small();
  b.tensors.push_back({"k", {256}, 12, std::string(144, 'x')});
  b.tensors.push_back({"odd", {256}, 4000, ""});
  const auto p = parse(b.build());
  ASSERT_TRUE(p->file) << p->file.error().to_string();
  EXPECT_FALSE(p->file->tensors()[2].type);
  EXPECT_EQ(ggml_type_name(p->file->tensors()[2].type_number), "Q4_K");
  EXPECT_EQ(ggml_type_name(4000), "number 4000");
}

// ---- cases.md 31: alignment stored with another type ----

TEST(GgufAlignment, BadOnesGiveOneErrorLine) {
  GgufBuilder b = small();
  b.scalar<int32_t>("general.alignment", 5, 32);
  EXPECT_THAT(refusal(b.build()),
              AllOf(HasSubstr("general.alignment"), HasSubstr("must be of type u32, is i32")));
  for (const uint32_t bad : {0u, 3u, 12u, 0x80000000u}) {
    b = small();
    b.u32("general.alignment", bad);
    EXPECT_THAT(refusal(b.build()), HasSubstr("is " + std::to_string(bad)));
  }
  std::string array;
  put<uint32_t>(array, 4);
  put<uint64_t>(array, 1);
  put<uint32_t>(array, 32);
  EXPECT_THAT(refusal(small().raw("general.alignment", 9, array).build()), HasSubstr("is array"));
}

TEST(GgufAlignment, OthersLoadTheSameTensors) {
  const auto plain = parse(small().build());
  for (const uint32_t good : {8u, 64u, 4096u}) {
    GgufBuilder b = small();
    b.u32("general.alignment", good);
    b.alignment = good;
    const auto p = parse(b.build());
    ASSERT_TRUE(p->file) << p->file.error().to_string();
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(std::ranges::equal(p->file->tensors()[i].bytes, plain->file->tensors()[i].bytes));
  }
}

// ---- cases.md 33 and the vocabulary that the text stack gets ----

TEST(GgufVocabulary, FillsWhatIsThereAndLeavesOutWhatIsNot) {
  const auto bare = parse(small().build());
  auto v = gguf_vocabulary(*bare->file);
  ASSERT_TRUE(v) << v.error().to_string();
  EXPECT_TRUE(v->pre.empty() && v->tokens.empty() && v->chat_template.empty());
  EXPECT_FALSE(v->add_bos || v->bos_id);

  for (const bool add : {true, false}) {
    GgufBuilder b = small();
    b.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "zzz");
    b.strings("tokenizer.ggml.tokens", {"a", "b"}).strings("tokenizer.ggml.merges", {"a b"});
    b.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 0xffffffff);
    b.scalar<uint8_t>("tokenizer.ggml.add_bos_token", 7, add ? 1 : 0);
    b.string("tokenizer.chat_template", "D").strings("tokenizer.chat_templates", {"tool_use"});
    b.string("tokenizer.chat_template.tool_use", "T");
    std::string types;
    put<uint32_t>(types, 5);
    put<uint64_t>(types, 2);
    put<int32_t>(types, 1);
    put<int32_t>(types, 3);
    b.raw("tokenizer.ggml.token_type", 9, types);
    const auto p = parse(b.build());
    ASSERT_TRUE(p->file) << p->file.error().to_string();
    v = gguf_vocabulary(*p->file);
    ASSERT_TRUE(v) << v.error().to_string();
    EXPECT_EQ(v->model, "gpt2");
    EXPECT_EQ(v->pre, "zzz");
    EXPECT_THAT(v->tokens, ElementsAre("a", "b"));
    EXPECT_THAT(v->merges, ElementsAre("a b"));
    EXPECT_THAT(v->token_types, ElementsAre(1, 3));
    EXPECT_EQ(v->bos_id, 1);
    EXPECT_FALSE(v->eos_id);  // 2^32 - 1 says "none"
    EXPECT_EQ(v->add_bos, add);
    EXPECT_EQ(v->chat_template, "D");
    EXPECT_EQ(v->named_chat_templates.at("tool_use"), "T");
  }
}

TEST(GgufVocabulary, WrongTypesAreNamed) {
  const auto wrong = [](GgufBuilder b) {
    const auto p = parse(b.build());
    const auto v = gguf_vocabulary(*p->file);
    return v ? std::string("was accepted") : v.error().detail;
  };
  EXPECT_THAT(wrong(small().u32("tokenizer.ggml.model", 1)),
              HasSubstr("tokenizer.ggml.model must be a string"));
  EXPECT_THAT(wrong(small().u32("tokenizer.ggml.tokens", 1)),
              HasSubstr("tokenizer.ggml.tokens must be an array"));
  EXPECT_THAT(wrong(small().strings("tokenizer.ggml.token_type", {"x"})),
              HasSubstr("tokenizer.ggml.token_type"));
  EXPECT_THAT(wrong(small().u32("tokenizer.ggml.add_bos_token", 1)), HasSubstr("must be a bool"));
}

}  // namespace
}  // namespace tandem::model
