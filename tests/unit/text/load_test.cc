#include "common/text/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/clock.h"
#include "tests/unit/text/text_fixtures.h"

namespace tandem::text {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const ManualClock kClock;
constexpr const char* kUser = R"([{"role":"user","content":"x"}])";

// A folder that goes away with the test.
class LoadFolder : public testing::Test {
 protected:
  LoadFolder()
      : folder_(fs::temp_directory_path() /
                ("tandem-text-" + std::to_string(getpid()) + "-" +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(folder_);
  }
  ~LoadFolder() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void write_tokenizer() const {
    write("tokenizer.json", read_file(data_path("tokenizers/byte_fallback.json")));
  }

  fs::path folder_;
};

std::string render(const TextModel& model) {
  return unwrap(
      model.chat_template->render({.messages_json = kUser, .tools_json = "", .kwargs_json = ""}));
}

TEST_F(LoadFolder, TokenizerAloneHasNoTemplate) {
  write_tokenizer();
  const TextModel model = unwrap(load_from_folder(folder_, kClock));
  EXPECT_NE(model.tokenizer, nullptr);
  EXPECT_EQ(model.chat_template, nullptr);
}

TEST_F(LoadFolder, FileWinsOverTheConfiguration) {
  write_tokenizer();
  write("tokenizer_config.json", R"({"chat_template":"C","bos_token":"<s>"})");
  EXPECT_EQ(render(unwrap(load_from_folder(folder_, kClock))), "C");
  write("chat_template.jinja", "J{{ bos_token }}");
  EXPECT_EQ(render(unwrap(load_from_folder(folder_, kClock))), "J<s>");
}

TEST_F(LoadFolder, RolesOfTheOlderFileFillTheConfiguration) {
  write_tokenizer();
  write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}");
  write("special_tokens_map.json", R"({"bos_token":{"content":"<s>"},"eos_token":"</s>"})");
  EXPECT_EQ(render(unwrap(load_from_folder(folder_, kClock))), "<s></s>");
  write("tokenizer_config.json", R"({"eos_token":"<unk>"})");
  EXPECT_EQ(render(unwrap(load_from_folder(folder_, kClock))), "<s><unk>");
}

TEST_F(LoadFolder, ErrorsNameFolderAndFile) {
  const auto error = [&] {
    const auto model = load_from_folder(folder_, kClock);
    EXPECT_FALSE(model);
    return model ? Error{} : model.error();
  };
  EXPECT_EQ(error().code, ErrorCode::kNotFound);
  EXPECT_THAT(error().detail, HasSubstr(folder_.string()));
  EXPECT_THAT(error().detail, HasSubstr("tokenizer.json is missing"));
  write("tokenizer.model", "x");
  EXPECT_THAT(error().detail, HasSubstr("fast format"));
  write("tokenizer.json", "{");
  EXPECT_EQ(error().code, ErrorCode::kCorruptData);
  write_tokenizer();
  write("tokenizer_config.json", "\n");  // a download that was cut short
  EXPECT_THAT(error().detail, HasSubstr("tokenizer_config.json is empty"));
  write("tokenizer_config.json", "[1]");
  EXPECT_THAT(error().detail, HasSubstr("tokenizer_config.json"));
  write("special_tokens_map.json", "{}");
  EXPECT_THAT(error().detail, HasSubstr("tokenizer_config.json"));
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", "nonsense");
  EXPECT_THAT(error().detail, HasSubstr("special_tokens_map.json"));
  write("special_tokens_map.json", "{}");
  write("chat_template.jinja", "{% for");
  EXPECT_THAT(error().detail, HasSubstr("does not compile"));
  write("chat_template.jinja", "\xff");
  EXPECT_THAT(error().detail, HasSubstr("chat_template.jinja"));
}

TEST_F(LoadFolder, Chat6m) {
  const TextModel model = unwrap(load_from_folder(fs::path(TANDEM_MODELS) / "chat-6m", kClock));
  EXPECT_THAT(model.warnings, testing::IsEmpty());
  EXPECT_THAT(render(model), HasSubstr("<|im_start|>user\nx<|im_end|>"));
}

}  // namespace
}  // namespace tandem::text
