// Rendered answers, read back with Boost.JSON's strict parser.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "common/base/json_text.h"
#include "common/net/http_message.h"
#include "router/api/render.h"

namespace tandem::router {
namespace {

namespace json = boost::json;

// The `data:` payloads of a stream, each checked to be one well-formed event.
std::vector<std::string> events(std::string_view stream) {
  std::vector<std::string> out;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    EXPECT_NE(end, stream.npos);
    std::string_view event = stream.substr(0, end);
    EXPECT_EQ(event.substr(0, 6), "data: ");
    EXPECT_EQ(event.find('\n'), event.npos);
    out.emplace_back(event.substr(6));
    stream.remove_prefix(end + 2);
  }
  return out;
}

std::set<std::string> keys(const json::value& value) {
  std::set<std::string> out;
  for (const auto& entry : value.as_object())
    out.insert(std::string(std::string_view(entry.key())));
  return out;
}

const AnswerHead kChat{Endpoint::kChat, "chatcmpl-1", 1700000000, "org/na\"me", "fp_0"};
const AnswerHead kText{Endpoint::kCompletion, "cmpl-1", 1700000000, "M", "fp_0"};

TEST(JsonWriter, EscapesWhatJsonAsksFor) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  all += "é€\xf0\x9f\x98\x80";
  std::string out;
  append_json_string(out, all);
  EXPECT_EQ(json::parse(out).as_string(), all);
}

TEST(JsonWriter, IllFormedBytesBecomeReplacementCharacters) {
  for (std::string_view bad :
       {"\xff", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xc0\x80", "\xf5\x80\x80\x80"}) {
    std::string out;
    append_json_string(out, "a" + std::string(bad) + "b");
    const json::value value = json::parse(out);  // throws on invalid UTF-8
    EXPECT_EQ(value.as_string().front(), 'a');
    EXPECT_EQ(value.as_string().back(), 'b');
    EXPECT_NE(out.find("\xef\xbf\xbd"), out.npos);
  }
}

TEST(JsonWriter, OnlyFiniteNumbersLeave) {  // case 17
  const auto written = [](float logprob) {
    const std::vector<LogprobEntry> entries{
        {.text = "x", .logprob = logprob, .top = {}, .text_offset = 0}};
    std::string out;
    append_logprobs(out, Endpoint::kChat, entries);
    return json::parse(out).at("content").at(0).at("logprob").to_number<double>();
  };
  EXPECT_EQ(written(-std::numeric_limits<float>::infinity()), -9999.0);
  EXPECT_EQ(written(std::numeric_limits<float>::quiet_NaN()), -9999.0);
  EXPECT_FLOAT_EQ(static_cast<float>(written(-0.0001F)), -0.0001F);
  std::string out;
  append_json_number(out, std::numeric_limits<double>::infinity());
  EXPECT_EQ(out, "null");
}

TEST(ChatStream, EveryChunkHasTheSameShape) {  // case 13
  const ChunkRenderer chunks(kChat, false);
  std::string stream;
  chunks.append_role(stream, 1);
  chunks.append_text(stream, 1, "a\n\"b\"", nullptr);
  chunks.append_finish(stream, 1, FinishKind::kLength);
  append_done(stream);
  const std::vector<std::string> all = events(stream);
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[3], "[DONE]");
  for (size_t i = 0; i < 3; ++i) {
    const json::value chunk = json::parse(all[i]);
    EXPECT_EQ(keys(chunk), (std::set<std::string>{"id", "object", "created", "model",
                                                  "system_fingerprint", "choices"}));
    EXPECT_EQ(chunk.at("id").as_string(), "chatcmpl-1");
    EXPECT_EQ(chunk.at("object").as_string(), "chat.completion.chunk");
    EXPECT_EQ(chunk.at("created").as_int64(), 1700000000);
    EXPECT_EQ(chunk.at("model").as_string(), "org/na\"me");
    const json::value& choice = chunk.at("choices").at(0);
    EXPECT_EQ(keys(choice), (std::set<std::string>{"index", "delta", "logprobs", "finish_reason"}));
    EXPECT_EQ(choice.at("index").as_int64(), 1);
    EXPECT_EQ(choice.at("delta").as_object().contains("role"), i == 0);
    EXPECT_EQ(choice.at("finish_reason").is_null(), i != 2);
  }
  EXPECT_EQ(json::parse(all[1]).at("choices").at(0).at("delta").at("content").as_string(),
            "a\n\"b\"");
  EXPECT_EQ(json::parse(all[2]).at("choices").at(0).at("finish_reason").as_string(), "length");
}

TEST(ChatStream, UsageChunkHasNoChoices) {
  const ChunkRenderer chunks(kChat, true);
  std::string stream;
  chunks.append_text(stream, 0, "x", nullptr);
  chunks.append_usage(stream, {.prompt_tokens = 5, .completion_tokens = 2, .cached_tokens = 3});
  const std::vector<std::string> all = events(stream);
  EXPECT_TRUE(json::parse(all[0]).at("usage").is_null());
  const json::value usage = json::parse(all[1]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("total_tokens").as_int64(), 7);
  EXPECT_EQ(usage.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64(), 3);
}

TEST(CompletionStream, ChunksCarryText) {
  const ChunkRenderer chunks(kText, false);
  std::string stream;
  chunks.append_text(stream, 3, "x", nullptr);
  chunks.append_finish(stream, 3, FinishKind::kStop);
  for (const std::string& event : events(stream)) {
    const json::value chunk = json::parse(event);
    EXPECT_EQ(chunk.at("object").as_string(), "text_completion");
    EXPECT_EQ(keys(chunk.at("choices").at(0)),
              (std::set<std::string>{"index", "text", "logprobs", "finish_reason"}));
  }
}

std::vector<LogprobEntry> entries() {
  const float none = -std::numeric_limits<float>::infinity();
  return {{.text = "a", .logprob = std::nullopt, .top = {}, .text_offset = 0},
          {.text = "\xf0\x9f",
           .logprob = -0.5F,
           .top = {{"b", -0.1F}, {"\xf0", -0.3F}, {"\xf0\x9f", none}},
           .text_offset = 1}};
}

TEST(Logprobs, ChatEntriesHoldBytesAndSortedAlternatives) {
  std::string out;
  append_logprobs(out, Endpoint::kChat, entries());
  const json::value content = json::parse(out).at("content");
  EXPECT_EQ(content.at(1).at("bytes").at(1).as_int64(), 0x9f);
  const json::array& top = content.at(1).at("top_logprobs").as_array();
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(top[2].at("logprob").to_number<double>(), -9999.0);
  for (size_t i = 1; i < top.size(); ++i) {
    EXPECT_GE(top[i - 1].at("logprob").to_number<double>(),
              top[i].at("logprob").to_number<double>());
  }
}

TEST(Logprobs, LegacyListsAreAlignedAndKeysUnique) {  // case 18
  std::string out;
  append_logprobs(out, Endpoint::kCompletion, entries());
  const json::value value = json::parse(out);
  for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(value.at(key).as_array().size(), 2U) << key;
  }
  EXPECT_TRUE(value.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(value.at("top_logprobs").at(0).is_null());
  // The token itself is one of its own alternatives: the text must name it once.
  const json::object& top = value.at("top_logprobs").at(1).as_object();
  const std::string raw = out.substr(out.find("{\"b\""));
  const std::string map = raw.substr(0, raw.find('}'));
  EXPECT_EQ(static_cast<size_t>(std::count(map.begin(), map.end(), ':')), top.size());
  EXPECT_EQ(top.size(), 3U);
  EXPECT_FLOAT_EQ(static_cast<float>(top.at("b").to_number<double>()), -0.1F);
}

TEST(Answer, HasOpenAisShape) {
  const std::vector<ChoiceBody> choices{
      {.index = 0, .text = "hé", .finish = FinishKind::kStop, .logprobs = {}},
      {.index = 1, .text = "", .finish = FinishKind::kLength, .logprobs = entries()}};
  const json::value chat = json::parse(render_answer(
      kChat, choices, {.prompt_tokens = 1, .completion_tokens = 2, .cached_tokens = 0}));
  EXPECT_EQ(chat.at("object").as_string(), "chat.completion");
  EXPECT_EQ(chat.at("choices").at(0).at("message").at("content").as_string(), "hé");
  EXPECT_EQ(chat.at("choices").at(0).at("message").at("role").as_string(), "assistant");
  EXPECT_FALSE(chat.at("choices").at(0).at("message").as_object().contains("tool_calls"));
  EXPECT_TRUE(chat.at("choices").at(0).at("logprobs").is_null());
  EXPECT_EQ(chat.at("choices").at(1).at("finish_reason").as_string(), "length");
  EXPECT_EQ(chat.at("usage").at("total_tokens").as_int64(), 3);
  const json::value text = json::parse(render_answer(kText, choices, {}));
  EXPECT_EQ(text.at("choices").at(0).at("text").as_string(), "hé");
  EXPECT_EQ(text.at("choices").at(1).at("logprobs").at("tokens").as_array().size(), 2U);
}

TEST(Errors, HaveOpenAisShape) {
  const json::value error = json::parse(
      openai_error_body(make_error(ErrorCode::kInvalidArgument, "bad \"x\"\n", "messages[0]")));
  EXPECT_EQ(keys(error.at("error")), (std::set<std::string>{"message", "type", "param", "code"}));
  EXPECT_EQ(error.at("error").at("param").as_string(), "messages[0]");
  EXPECT_EQ(error.at("error").at("type").as_string(), "invalid_request_error");
  const json::value other =
      json::parse(openai_error_body(make_error(ErrorCode::kNotFound, "x"), "model_not_found"));
  EXPECT_TRUE(other.at("error").at("param").is_null());
  EXPECT_EQ(other.at("error").at("code").as_string(), "model_not_found");
  std::string stream;
  append_error_event(stream, make_error(ErrorCode::kUnavailable, "gone"));
  EXPECT_TRUE(json::parse(events(stream).at(0)).as_object().contains("error"));
}

}  // namespace
}  // namespace tandem::router
