// The real model's tokenizer and template against tests/data/golden/smollm2, made with the
// reference implementation. Needs TANDEM_SMOLLM2, the path of the GGUF file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <span>
#include <string>

#include "common/base/clock.h"
#include "common/model/gguf.h"
#include "common/model/text.h"
#include "common/text/load.h"
#include "tests/unit/text/text_fixtures.h"

namespace tandem::text {
namespace {

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("TANDEM_SMOLLM2");
    if (path == nullptr) GTEST_SKIP() << "TANDEM_SMOLLM2 is not set";
    file_ = read_file(path);
    const auto gguf = unwrap(model::GgufFile::parse(std::as_bytes(std::span(file_)), path));
    model_ = unwrap(load_from_gguf(unwrap(model::gguf_vocabulary(gguf)), clock_));
    golden_ = read_json(std::string(TANDEM_TEST_DATA) + "/golden/smollm2/golden.json");
  }

  std::string file_;
  ManualClock clock_;
  TextModel model_;
  boost::json::value golden_;
};

TEST_F(SmolLm2, IdsAndTextsEqualTheReference) {
  const auto& cases = golden_.at("tokenize").as_array();
  ASSERT_FALSE(cases.empty());
  for (const auto& expected : cases) {
    const auto ids = ids_of(expected.at("ids"));
    EXPECT_EQ(unwrap(model_.tokenizer->encode(text_of(expected.at("text")))), ids);
    EXPECT_EQ(model_.tokenizer->decode(ids, false), text_of(expected.at("decoded")));
    EXPECT_EQ(stream(model_.tokenizer, ids, false), text_of(expected.at("decoded")));
  }
}

TEST_F(SmolLm2, ChatsRenderAndTokenizeAsTheReference) {
  const auto& cases = golden_.at("cases").as_array();
  ASSERT_FALSE(cases.empty());
  for (const auto& expected : cases) {
    const std::string prompt = unwrap(model_.chat_template->render(
        {.messages_json = boost::json::serialize(expected.at("messages")),
         .tools_json = "",
         .kwargs_json = ""}));
    EXPECT_EQ(prompt, text_of(expected.at("rendered")));
    EXPECT_EQ(unwrap(model_.tokenizer->encode(prompt)), ids_of(expected.at("prompt")));
  }
}

TEST_F(SmolLm2, MissingBytesAreWarnedAboutAndNoBeginTokenIsAdded) {
  // Checked by hand in the file: its byte alphabet ends short of these.
  EXPECT_THAT(model_.warnings,
              testing::ElementsAre(testing::HasSubstr("04 06 13 14 16 1d f1 f2:")));
  const auto plain = unwrap(model_.tokenizer->encode("x"));
  EXPECT_EQ(unwrap(model_.tokenizer->encode("x", {.add_special_tokens = true})), plain);
}

}  // namespace
}  // namespace tandem::text
