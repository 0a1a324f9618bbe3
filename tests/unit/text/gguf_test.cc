// Byte-level vocabularies: expected ids from the `tokenizers` library. SentencePiece: expected ids
// and texts from `sentencepiece` itself (generate_tokenizers.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/text/load.h"
#include "common/text/tokenizer.h"
#include "tests/unit/text/text_fixtures.h"

namespace tandem::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ManualClock kClock;

std::shared_ptr<const Tokenizer> build(const GgufVocabulary& vocabulary) {
  return unwrap(Tokenizer::from_gguf(vocabulary));
}

Error build_error(const GgufVocabulary& vocabulary) {
  auto result = Tokenizer::from_gguf(vocabulary);
  if (result) {
    ADD_FAILURE() << "the vocabulary was accepted";
    return {};
  }
  return result.error();
}

class ByteLevelGguf : public testing::TestWithParam<std::string> {};

TEST_P(ByteLevelGguf, IdsEqualTheReference) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = GetParam();
  const auto tokenizer = build(vocabulary);
  EXPECT_THAT(tokenizer->warnings(), IsEmpty());
  const boost::json::value golden = read_json(data_path("gguf_golden.json"));
  for (const auto& expected : golden.at("byte_level").at(GetParam()).as_array()) {
    const std::string text = text_of(expected.at("text"));
    SCOPED_TRACE(text);
    const auto ids = ids_of(expected.at("ids"));
    EXPECT_EQ(unwrap(tokenizer->encode(text)), ids);
    EXPECT_EQ(unwrap(tokenizer->encode(text, {.parse_special = false})),
              ids_of(expected.at("plain")));
    EXPECT_EQ(tokenizer->decode(ids, false), text_of(expected.at("decoded")));
    EXPECT_EQ(tokenizer->decode(ids, true), text_of(expected.at("skipped")));
    EXPECT_EQ(stream(tokenizer, ids, true), text_of(expected.at("skipped")));
  }
}

INSTANTIATE_TEST_SUITE_P(PreTokenizers, ByteLevelGguf,
                         testing::Values("gpt-2", "smollm", "llama-bpe", "qwen2"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(PreTokenizerName, AbsentOrDefaultFallsBackToGpt2WithAWarning) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = "gpt-2";
  const auto expected = unwrap(build(vocabulary)->encode("Hello 1234 it's"));
  for (const char* pre : {"", "default"}) {
    vocabulary.pre = pre;
    const auto tokenizer = build(vocabulary);
    EXPECT_THAT(tokenizer->warnings(), ElementsAre(HasSubstr("tokenizer.ggml.pre")));
    EXPECT_EQ(unwrap(tokenizer->encode("Hello 1234 it's")), expected);
  }
}

TEST(PreTokenizerName, UnknownOneIsRefusedByName) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  for (const char* pre : {"zzz", "GPT-2", "qwen2 "}) {
    vocabulary.pre = pre;
    const Error error = build_error(vocabulary);
    EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    EXPECT_THAT(error.detail, HasSubstr(std::string("\"") + pre + "\""));
    EXPECT_THAT(error.detail, HasSubstr("tokenizer.ggml.pre"));
  }
}

TEST(BeginToken, FollowsTheKeyAndTheKindOfVocabulary) {
  struct Case {
    const char* fixture;
    const char* pre;
    std::optional<bool> key;
    bool expected;
  };
  for (const Case& c :
       {Case{"byte_level", "gpt-2", std::nullopt, false},
        Case{"byte_level", "smollm", std::nullopt, false},
        Case{"byte_level", "qwen2", std::nullopt, false},
        Case{"byte_level", "llama-bpe", std::nullopt, true},
        Case{"byte_level", "llama-bpe", false, false}, Case{"byte_level", "gpt-2", true, true},
        Case{"byte_level", "gpt-2", false, false}, Case{"sentence_piece", "", std::nullopt, true},
        Case{"sentence_piece", "default", true, true}, Case{"sentence_piece", "", false, false}}) {
    GgufVocabulary vocabulary = load_gguf_fixture(c.fixture);
    vocabulary.pre = c.pre;
    vocabulary.add_bos = c.key;
    const auto tokenizer = build(vocabulary);
    const auto plain = unwrap(tokenizer->encode("Hello 1234 it's"));
    auto expected = plain;
    if (c.expected) expected.insert(expected.begin(), static_cast<TokenId>(*vocabulary.bos_id));
    EXPECT_EQ(unwrap(tokenizer->encode("Hello 1234 it's", {.add_special_tokens = true})), expected)
        << c.fixture << " " << c.pre;
  }
}

TEST(EndToken, IsAddedWhenTheKeyAsks) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = "gpt-2";
  vocabulary.add_eos = true;
  const auto tokenizer = build(vocabulary);
  auto expected = unwrap(tokenizer->encode("x"));
  expected.push_back(static_cast<TokenId>(*vocabulary.eos_id));
  EXPECT_EQ(unwrap(tokenizer->encode("x", {.add_special_tokens = true})), expected);
  // Asked for, but the file names no token: a warning, not a failure.
  vocabulary.eos_id.reset();
  EXPECT_THAT(build(vocabulary)->warnings(), ElementsAre(HasSubstr("add_eos_token")));
}

TEST(SentencePiece, IdsAndTextsEqualTheReference) {
  const auto tokenizer = build(load_gguf_fixture("sentence_piece"));
  const boost::json::value golden = read_json(data_path("gguf_golden.json"));
  const auto& cases = golden.at("sentence_piece").as_array();
  ASSERT_GT(cases.size(), 25u);
  for (const auto& expected : cases) {
    const std::string text = text_of(expected.at("text"));
    SCOPED_TRACE(text);
    const auto ids = ids_of(expected.at("ids"));
    EXPECT_EQ(unwrap(tokenizer->encode(text)), ids);
    EXPECT_EQ(tokenizer->decode(ids, false), text_of(expected.at("decoded")));
    EXPECT_EQ(stream(tokenizer, ids, true), text_of(expected.at("decoded")));
  }
}

// As in llama.cpp, each stretch of text behind such a token begins with a mark of its own.
TEST(SentencePiece, UserDefinedTokensAreMatchedWhole) {
  const auto tokenizer = build(load_gguf_fixture("sentence_piece"));
  const TokenId tool = tokenizer->find("<tool>").value();
  const auto x = unwrap(tokenizer->encode("x"));
  std::vector<TokenId> expected{tool, tool};
  expected.insert(expected.end(), x.begin(), x.end());
  EXPECT_EQ(unwrap(tokenizer->encode("<tool><tool>x")), expected);
}

TEST(SentencePiece, WithoutSpacePrefixNothingIsAddedOrTakenOff) {
  GgufVocabulary vocabulary = load_gguf_fixture("sentence_piece");
  vocabulary.add_space_prefix = false;
  const auto tokenizer = build(vocabulary);
  for (const std::string text : {"dog", " dog", "  dog"}) {
    EXPECT_EQ(tokenizer->decode(unwrap(tokenizer->encode(text)), false), text);
  }
  EXPECT_NE(unwrap(tokenizer->encode("dog")), unwrap(tokenizer->encode(" dog")));
}

TEST(SpecialTypes, ControlTokensAreSpecialAndUserDefinedOnesAreNot) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = "gpt-2";
  const auto control = static_cast<TokenId>(vocabulary.tokens.size());
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<ctl>", "<tool é>", "   "});
  vocabulary.token_types.insert(vocabulary.token_types.end(), {3, 4, 4});
  const auto tokenizer = build(vocabulary);
  const std::vector<TokenId> ids{control, control + 1, control + 2};
  EXPECT_EQ(unwrap(tokenizer->encode("<ctl><tool é>   ")), ids);
  EXPECT_TRUE(tokenizer->is_special(control));
  EXPECT_FALSE(tokenizer->is_special(control + 1));
  EXPECT_EQ(tokenizer->decode(ids, true), "<tool é>   ");
  EXPECT_EQ(tokenizer->decode(ids, false), "<ctl><tool é>   ");
  const auto plain = unwrap(tokenizer->encode("<ctl><tool é>", {.parse_special = false}));
  EXPECT_THAT(plain, testing::Not(testing::Contains(control)));
  EXPECT_THAT(plain, testing::Contains(control + 1));
}

TEST(SpecialTypes, PaddingIdOfANormalTokenStaysNormal) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = "gpt-2";
  const auto tokenizer = build(vocabulary);
  const TokenId normal = tokenizer->find("a").value();
  vocabulary.pad_id = normal;
  EXPECT_FALSE(build(vocabulary)->is_special(normal));
  vocabulary.eos_id = normal;
  EXPECT_TRUE(build(vocabulary)->is_special(normal));
}

TEST(BadVocabulary, IsAnErrorNamingTheKey) {
  const GgufVocabulary good = [] {
    GgufVocabulary v = load_gguf_fixture("byte_level");
    v.pre = "gpt-2";
    return v;
  }();
  const auto expect = [](const GgufVocabulary& vocabulary, const std::string& text) {
    const Error error = build_error(vocabulary);
    EXPECT_EQ(error.code, ErrorCode::kCorruptData);
    EXPECT_THAT(error.detail, HasSubstr(text));
  };
  GgufVocabulary v = good;
  v.tokens.clear();
  expect(v, "tokenizer.ggml.tokens");
  v = good;
  v.merges.clear();
  expect(v, "tokenizer.ggml.merges");
  v = good;
  v.merges[3] = "nospace";
  expect(v, "tokenizer.ggml.merges[3]");
  v = good;
  v.merges[3] = "a notinvocabulary";
  expect(v, "notinvocabulary");
  v = good;
  v.tokens[7] = "\xff\xfe";
  expect(v, "tokenizer.ggml.tokens[7]");
  v = good;
  v.token_types.pop_back();
  expect(v, "tokenizer.ggml.token_type");
  v = good;
  v.scores = {1.0f};
  expect(v, "tokenizer.ggml.scores");
  const auto size = static_cast<int64_t>(good.tokens.size());
  for (const int64_t id : {int64_t{-2}, int64_t{1} << 40, size}) {
    v = good;
    v.bos_id = id;
    expect(v, "tokenizer.ggml.bos_token_id");
  }
  v = good;
  v.model.clear();
  expect(v, "tokenizer.ggml.model");
  v.model = "bert";
  const Error error = build_error(v);
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.detail, HasSubstr("\"bert\""));
  v = load_gguf_fixture("sentence_piece");
  v.scores.clear();
  expect(v, "tokenizer.ggml.scores");
}

TEST(BadVocabulary, RepeatedTokensAreWarnedAbout) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = "gpt-2";
  vocabulary.tokens.push_back(vocabulary.tokens[100]);
  vocabulary.token_types.push_back(1);
  const auto tokenizer = build(vocabulary);
  EXPECT_THAT(tokenizer->warnings(), ElementsAre(HasSubstr("repeats 1")));
  const auto last = static_cast<TokenId>(vocabulary.tokens.size() - 1);
  EXPECT_EQ(tokenizer->token_text(100), tokenizer->token_text(last));
  EXPECT_EQ(tokenizer->token_bytes(100), tokenizer->token_bytes(last));
}

TEST(Templates, ComeFromTheMetadataWithItsTokens) {
  GgufVocabulary vocabulary = load_gguf_fixture("byte_level");
  vocabulary.pre = "gpt-2";
  EXPECT_EQ(unwrap(load_from_gguf(vocabulary, kClock)).chat_template, nullptr);
  vocabulary.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
  vocabulary.named_chat_templates["tool_use"] = "T";
  const TextModel model = unwrap(load_from_gguf(vocabulary, kClock));
  const std::string messages = R"([{"role":"user","content":"x"}])";
  EXPECT_EQ(unwrap(model.chat_template->render(
                {.messages_json = messages, .tools_json = "", .kwargs_json = ""})),
            "<s>x</s>");
  EXPECT_EQ(unwrap(model.chat_template->render(
                {.messages_json = messages, .tools_json = "[{}]", .kwargs_json = ""})),
            "T");
  vocabulary.chat_template = "{% broken";
  EXPECT_FALSE(load_from_gguf(vocabulary, kClock));
}

}  // namespace
}  // namespace tandem::text
