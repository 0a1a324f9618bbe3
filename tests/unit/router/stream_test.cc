// Tokens to text: stop strings, half characters, aligned log-probabilities.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "common/text/load.h"
#include "common/text/tokenizer.h"
#include "router/stream/choice_stream.h"

namespace tandem::router {
namespace {

// The reference: first end of any stop, by brute force over the whole text.
std::pair<std::string, bool> cut(const std::string& text, const std::vector<std::string>& stops,
                                 bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stops) {
      if (!s.empty() && end >= s.size() && text.compare(end - s.size(), s.size(), s) == 0) {
        longest = std::max(longest, s.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - (include ? 0 : longest)), true};
  }
  return {text, false};
}

TEST(StopMatcher, AgreesWithBruteForceHoweverTheTextIsCut) {
  std::mt19937 random(11);
  auto word = [&](size_t max) {
    std::string s;
    for (size_t n = random() % max + 1; n > 0; --n) s += static_cast<char>('a' + random() % 3);
    return s;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(5));
    const std::string text = word(60);
    const bool include = random() % 2 == 0;
    StopMatcher matcher(stops, include);
    std::string out;
    bool stopped = false;
    std::string seen;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t n = std::min<size_t>(random() % 7 + 1, text.size() - at);
      stopped = matcher.push(std::string_view(text).substr(at, n), out);
      at += n;
      const auto [want, found] = cut(text, stops, include);
      ASSERT_EQ(want.substr(0, out.size()), out);  // never more than the final text
    }
    if (!stopped) matcher.flush(out);
    const auto [want, found] = cut(text, stops, include);
    ASSERT_EQ(out, want) << text;
    ASSERT_EQ(stopped, found);
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"END"}, false);
  std::string out;
  EXPECT_FALSE(matcher.push("the E", out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(matcher.push("N", out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(matcher.push("TRY", out));
  EXPECT_EQ(out, "the ENTRY");
  StopMatcher none({}, false);
  EXPECT_FALSE(none.push("anything", out));
  EXPECT_EQ(out, "the ENTRYanything");
}

class ChatModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Result<text::TextModel> loaded =
        text::load_from_folder(std::string(TANDEM_MODELS) + "/chat-6m", clock_);
    ASSERT_TRUE(loaded) << loaded.error().detail;
    tokenizer_ = loaded->tokenizer;
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }

  static std::vector<AnswerToken> tokens(const std::string& text) {
    std::vector<AnswerToken> out;
    const auto ids = tokenizer_->encode(text);
    EXPECT_TRUE(ids);
    for (size_t i = 0; i < ids->size(); ++i) {
      const float logprob = -0.5F - static_cast<float>(i);
      out.push_back(
          {.id = (*ids)[i], .logprob = logprob, .top = {{(*ids)[i], logprob}, {5, -9.0F}}});
    }
    return out;
  }

  struct Run {
    std::string text;
    std::vector<LogprobEntry> logprobs;
    std::optional<FinishKind> finish;
    std::vector<std::string> chunks;
    uint32_t counted = 0;
  };
  static Run run(const std::vector<AnswerToken>& answer, StreamOptions options) {
    ChoiceStream stream(tokenizer_, std::move(options));
    Run out;
    auto take = [&](const StreamDelta& delta) {
      EXPECT_TRUE(is_valid_utf8(delta.text));
      out.text += delta.text;
      if (!delta.text.empty()) out.chunks.push_back(delta.text);
      out.logprobs.insert(out.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
      if (delta.finish) out.finish = delta.finish;
    };
    for (const AnswerToken& token : answer) {
      StreamDelta delta;
      stream.push(token, delta);
      take(delta);
    }
    StreamDelta last;
    stream.finish(FinishKind::kLength, last);
    take(last);
    out.counted = stream.tokens();
    return out;
  }

  static SteadyClock clock_;
  static std::shared_ptr<const text::Tokenizer> tokenizer_;
};
SteadyClock ChatModel::clock_;
std::shared_ptr<const text::Tokenizer> ChatModel::tokenizer_;

TEST_F(ChatModel, AStopStringSpreadOverTokensIsNeverShown) {  // case 11
  const std::string text =
      "I would like to book a table for two people at seven, please. caf\xc3\xa9\xe2\x80\x94"
      "bar";
  const std::vector<AnswerToken> answer = tokens(text);
  for (size_t at = 1; at + 9 < text.size(); ++at) {
    const std::string stop = text.substr(at, 9);
    if (!is_valid_utf8(stop)) continue;
    const Run r = run(answer, {.stop = {stop}});
    const auto [want, found] = cut(text, {stop}, false);
    ASSERT_EQ(r.text, want) << stop;
    EXPECT_EQ(r.finish, FinishKind::kStop);
    EXPECT_LT(r.counted, answer.size() + 1);
  }
  const Run accent = run(answer, {.stop = {"\xc3\xa9\xe2\x80\x94"}});
  EXPECT_EQ(accent.text, text.substr(0, text.find("\xc3\xa9")));
  const Run included = run(answer, {.stop = {"two people"}, .include_stop = true});
  EXPECT_EQ(included.text, text.substr(0, text.find("two people") + 10));
}

TEST_F(ChatModel, AnEmojiOfSeveralTokensComesWhole) {  // case 14
  const std::string text = "ok \xf0\x9f\x98\x80\xf0\x9f\x9a\x80 \xe5\x91\xa8 done";
  const std::vector<AnswerToken> answer = tokens(text);
  ASSERT_GT(answer.size(), 8U);  // the emoji are not single tokens
  const Run r = run(answer, {});
  EXPECT_EQ(r.text, text);
  for (const std::string& chunk : r.chunks) EXPECT_EQ(chunk.find("\xef\xbf\xbd"), chunk.npos);
  // Cut within the character: the bytes really are invalid then, and only then.
  std::vector<AnswerToken> half(answer.begin(), answer.begin() + 3);
  const Run broken = run(half, {});
  EXPECT_TRUE(is_valid_utf8(broken.text));
}

TEST_F(ChatModel, LogprobsBelongToTheTextTheyComeWith) {
  const std::string text = "one two \xf0\x9f\x98\x80 three four";
  const std::vector<AnswerToken> answer = tokens(text);
  const Run r = run(answer, {.stop = {}, .logprobs = true, .text_offset = 7});
  ASSERT_EQ(r.logprobs.size(), answer.size());
  std::string joined;
  for (size_t i = 0; i < answer.size(); ++i) {
    EXPECT_EQ(r.logprobs[i].logprob, answer[i].logprob);
    EXPECT_EQ(r.logprobs[i].top.size(), 2U);
    // Where the token begins, or the character that it continues.
    size_t whole = joined.size();
    while (!is_valid_utf8(joined.substr(0, whole))) --whole;
    EXPECT_EQ(r.logprobs[i].text_offset, 7 + count_characters(joined.substr(0, whole))) << i;
    joined += r.logprobs[i].text;
  }
  EXPECT_EQ(joined, text);
}

TEST_F(ChatModel, TokensBehindAStopHaveNoLogprobs) {
  const std::string text = "one two three four five six";
  const std::vector<AnswerToken> answer = tokens(text);
  const Run r = run(answer, {.stop = {"three"}, .logprobs = true});
  EXPECT_EQ(r.text, "one two ");
  std::string joined;
  for (const LogprobEntry& e : r.logprobs) joined += e.text;
  EXPECT_EQ(joined.substr(0, 7), "one two");
  EXPECT_EQ(joined.find("four"), joined.npos);
  const Run at_start = run(answer, {.stop = {"one"}, .logprobs = true});
  EXPECT_EQ(at_start.text, "");
  EXPECT_TRUE(at_start.logprobs.empty());
  EXPECT_EQ(at_start.finish, FinishKind::kStop);
}

TEST_F(ChatModel, PromptEntriesCoverEveryTokenAndTheFirstHasNoLogprob) {  // case 18
  const std::string text = "one two three";
  const std::vector<AnswerToken> prompt = tokens(text);
  std::vector<TokenId> ids;
  for (const AnswerToken& t : prompt) ids.push_back(t.id);
  const std::vector<LogprobEntry> entries =
      prompt_entries(tokenizer_, ids, std::span(prompt).subspan(1));
  ASSERT_EQ(entries.size(), ids.size());
  EXPECT_FALSE(entries[0].logprob);
  std::string joined;
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].text_offset, joined.size());
    joined += entries[i].text;
    if (i > 0) {
      EXPECT_EQ(entries[i].logprob, prompt[i].logprob);
    }
  }
  EXPECT_EQ(joined, text);
}

}  // namespace
}  // namespace tandem::router
