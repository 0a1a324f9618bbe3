#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

#include "common/base/clock.h"
#include "tools/bench/completion_stream.h"
#include "tools/bench/prompts.h"
#include "tools/bench/report.h"
#include "tools/bench/trace.h"

namespace tandem::bench {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Trace, ReadsAzureTimesAcrossMidnight) {
  const auto trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-12-31 23:59:59.5000000,374,44\r\n"
      "2024-01-01 00:00:01.2500000,396,109\r\n",
      "t.csv");
  ASSERT_TRUE(trace) << trace.error().to_string();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].prompt_tokens, 374u);
  EXPECT_THAT((*trace)[1].at_seconds, DoubleNear(1.75, 1e-5));
  EXPECT_EQ((*trace)[1].output_tokens, 109u);
}

TEST(Trace, ReadsMooncakeAndSortsByTime) {
  const auto trace = parse_trace(
      R"({"timestamp": 3000, "input_length": 7, "output_length": 5, "hash_ids": [0, 2]})"
      "\n"
      R"({"timestamp": 1000, "input_length": 9, "output_length": 6, "hash_ids": [0, 1]})",
      "t.jsonl");
  ASSERT_TRUE(trace) << trace.error().to_string();
  EXPECT_EQ((*trace)[0].prompt_tokens, 9u);
  EXPECT_THAT((*trace)[1].at_seconds, DoubleNear(2.0, 1e-9));
  EXPECT_EQ((*trace)[1].hash_ids, (std::vector<uint64_t>{0, 2}));
}

TEST(Trace, ReadsAzureTimesWithOffsets) {
  // As the traces of 2024 write them; rows on a full second have no fraction.
  const auto trace = parse_trace(
      "\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 "
      "00:00:00.009930+00:00,2162,5\n"
      "2024-05-10 00:00:03+00:00,24,6\n2024-05-10T01:00:04.5+0100,1,7\n2024-05-09 22:00:05-02,1,8\n"
      "2024-05-10T00:00:06Z,1,9\n",
      "t.csv");
  ASSERT_TRUE(trace) << trace.error().to_string();
  std::vector<double> at;
  for (const TraceRequest& request : *trace) at.push_back(request.at_seconds + 0.00993);
  EXPECT_THAT(at, ElementsAre(DoubleNear(0.00993, 1e-5), DoubleNear(3, 1e-5), DoubleNear(4.5, 1e-5),
                              DoubleNear(5, 1e-5), DoubleNear(6, 1e-5)));
  EXPECT_EQ((*trace)[0].prompt_tokens, 2162u);
}

TEST(Trace, ColumnsGoByTheirNames) {
  const auto swapped = parse_trace(
      "\"GeneratedTokens\", TIMESTAMP, ContextTokens\n\"3\", 2023-11-16 18:15:46.68, 20\n", "t");
  ASSERT_TRUE(swapped) << swapped.error().to_string();
  EXPECT_EQ((*swapped)[0].prompt_tokens, 20u);
  EXPECT_EQ((*swapped)[0].output_tokens, 3u);
  const auto burst = parse_trace(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
      "5,ChatGPT,472,18,490,Conversation log\r\n45,GPT-4,1087,0,1087,API log\r\n",
      "t");
  ASSERT_TRUE(burst) << burst.error().to_string();
  EXPECT_DOUBLE_EQ((*burst)[1].at_seconds, 40);
  EXPECT_EQ((*burst)[0].prompt_tokens, 472u);
  EXPECT_EQ((*burst)[0].output_tokens, 18u);
}

TEST(Trace, BailianCountsInSecondsAndSmallBlocks) {
  const auto trace = parse_trace(
      R"(  {"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.25, "input_length": 40, "output_length": 4,)"
      R"( "type": "text", "turn": 1, "hash_ids": [8, 9, 10]})"
      "\n"
      R"({"chat_id": 2, "timestamp": 62.5, "input_length": 9, "output_length": 5, "hash_ids": null})",
      "t");
  ASSERT_TRUE(trace) << trace.error().to_string();
  EXPECT_DOUBLE_EQ((*trace)[1].at_seconds, 1.25);
  EXPECT_EQ((*trace)[0].hash_block_tokens, 16u);
  EXPECT_EQ((*trace)[0].hash_ids.size(), 3u);
}

TEST(Trace, ReadsTheRecordedTracesWhole) {
  // Line counts from `wc -l`.
  const auto azure = read_trace(TANDEM_TEST_DATA "/traces/azure_conv_2023.csv");
  ASSERT_TRUE(azure) << azure.error().to_string();
  EXPECT_EQ(azure->size(), 19366u);
  const auto mooncake = read_trace(TANDEM_TEST_DATA "/traces/mooncake_conversation.jsonl");
  ASSERT_TRUE(mooncake) << mooncake.error().to_string();
  EXPECT_EQ(mooncake->size(), 12031u);
}

TEST(Trace, ErrorsNameFileLineAndField) {
  const auto expect = [](std::string_view text, const char* message) {
    const auto trace = parse_trace(text, "t");
    ASSERT_FALSE(trace) << text;
    EXPECT_THAT(trace.error().detail, HasSubstr(message));
  };
  expect("", "t: no request");
  expect("2023-11-16 18:15:46.68,374\n", "t:1: expected TIMESTAMP");
  expect("\n2023-11-16 18:15:46.68,-4,44\n", "t:2: bad ContextTokens '-4'");
  expect("yesterday,374,44\n", "t:1: bad TIMESTAMP 'yesterday'");
  expect(R"({"timestamp": 0, "input_length": "x", "output_length": 1})", "'input_length'");
  expect(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]})",
         "'hash_ids'");
  expect("{\"timestamp\": ", "t:1: not a JSON object");
  for (const char* time : {"2023-11-16 18:15:nan", "2023-11-16 18:15:inf", "2023-11-16 -8:15:46",
                           "2023-11-16 18:99:46", "2023-11-16 18:15:46+1", "nan", "-1", "1e300"})
    expect(std::string(time) + ",20,3\n", "t:1: bad TIMESTAMP");
  expect("TIMESTAMP,ContextTokens\n", "t:1: no column of answer lengths");
  expect("Timestamp,Request tokens,Response tokens,Log Type\n1,2,3\n", "t:2: expected as many");
  expect("1,20,3\n2023-11-16 18:15:46,20,3\n", "more than ten years");
  expect("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n1,20,3\n",
         "t:2: CSV and JSON lines");
  expect("[{\"timestamp\": 0}]", "t:1: a JSON array");
  expect("\x1f\x8b\x08", "t: this file is compressed");
  expect(std::string_view("T\0I\0M\0", 6), "t: this file is not UTF-8 text");
}

TEST(Trace, StretchedTimesStayWithinTheClock) {
  const auto scaled = scale_trace({{3e8, 1, 1, {}}}, {.time = 1e6});
  EXPECT_GT(from_seconds(scaled[0].at_seconds), from_seconds(3e8));
}

TEST(Trace, ScalesTimeAndLengthAndKeepsOneToken) {
  const auto scaled = scale_trace(
      {{10, 1000, 3, {}}, {20, 5, 400, {}}, {30, 1, 1, {}}},
      {.time = 0.5, .length = 0.1, .max_prompt_tokens = 0, .max_output_tokens = 20, .limit = 2});
  ASSERT_EQ(scaled.size(), 2u);
  EXPECT_EQ(scaled[0].prompt_tokens, 100u);
  EXPECT_EQ(scaled[0].output_tokens, 1u);
  EXPECT_EQ(scaled[1].output_tokens, 20u);
  EXPECT_DOUBLE_EQ(scaled[1].at_seconds, 10);
}

TEST(Load, PoissonKeepsItsRate) {
  const auto load = poisson_load(50, 20'000, 8, 4, 1);
  EXPECT_THAT(load.back().at_seconds, DoubleNear(400, 12));  // 4 standard deviations of 20000 gaps
}

TEST(Prompts, EqualHashIdsAreEqualTextAndTheRestIsUnique) {
  std::vector<TokenId> pool;
  for (TokenId id = 100; id < 900; ++id) pool.push_back(id);
  const PromptMaker maker(pool, 7, 0.125);  // 64 tokens a block
  const auto a = maker.make({0, 150, 1, {5, 6}}, 0);
  const auto b = maker.make({0, 150, 1, {5, 9}}, 1);
  ASSERT_EQ(a.size(), 150u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 64, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 64, a.begin() + 128, b.begin() + 64));
  EXPECT_FALSE(std::equal(a.begin() + 128, a.end(), b.begin() + 128));
  EXPECT_EQ(a, maker.make({0, 150, 1, {5, 6}}, 0));
}

TEST(Prompts, SmallScaledBlocksKeepTheirShare) {
  std::vector<TokenId> pool;
  for (TokenId id = 100; id < 900; ++id) pool.push_back(id);
  const PromptMaker maker(pool, 7, 0.1);
  TraceRequest a{0, 160, 1, {}, 16};
  for (uint64_t id = 0; id < 60; ++id) a.hash_ids.push_back(id);
  TraceRequest b = a;
  b.hash_ids.resize(50);  // of 1.6 tokens: the first 80 tokens are shared, what follows is not
  const auto first = maker.make(a, 0);
  const auto second = maker.make(b, 1);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 80, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 80, first.begin() + 96, second.begin() + 80));
}

TEST(Report, PercentilesAreNearestRank) {
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(percentile({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9), 9);
  EXPECT_EQ(percentile({1, 2}, 0.99), 2);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(Report, CountsGoodputOverEverythingThatWasSent) {
  const auto completed = [](double ttft, std::vector<double> gaps) {
    Observation o;
    o.completed = true;
    o.ttft = ttft;
    o.gaps = std::move(gaps);
    return o;
  };
  std::vector<Observation> seen = {completed(0.5, {0.01, 0.03}), completed(2.0, {0.01}),
                                   completed(0.5, {0.3}), Observation{}};
  seen[3].error = "http 429";
  const Report report = summarize(seen, 10, {.ttft_seconds = 1, .itl_seconds = 0.05});
  EXPECT_EQ(report.completed, 3u);
  EXPECT_EQ(report.within_slo, 1u);
  const auto json = boost::json::parse(to_json(report)).as_object();
  EXPECT_DOUBLE_EQ(json.at("goodput").at("share").as_double(), 0.25);
  EXPECT_DOUBLE_EQ(json.at("goodput").at("requests_per_second").as_double(), 0.1);
  EXPECT_EQ(json.at("errors").at("http 429").as_int64(), 1);
}

TEST(Report, AnEmptyRunIsStrictJson) {
  const auto json = boost::json::parse(to_json(summarize({}, 0, {})));
  EXPECT_TRUE(json.at("ttft_seconds").at("p50").is_null());
}

TEST(Report, ARunWithoutAnAnswerSaysWhyAndNoNumberThatIsNone) {
  std::vector<Observation> seen(20);
  for (size_t i = 0; i < seen.size(); ++i) {
    seen[i].error = i < 12 ? "http 429: the queue is full" : "http 400: " + std::to_string(i);
  }
  const std::string text = to_table(summarize(seen, 2, {}));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, ContainsRegex("TTFT +- +- +- +-\n"));
  EXPECT_THAT(text, HasSubstr("  12 x http 429: the queue is full\n  1 x http 400: 12\n"));
  EXPECT_THAT(text, HasSubstr("  4 x 4 other messages"));  // 8 others, 4 of them shown
}

TEST(Report, SaysHowMuchOfThePromptsWasCachedIfTheServerTells) {
  std::vector<Observation> seen(2);
  for (Observation& o : seen) {
    o.completed = true;
    o.prompt_tokens = 200;
  }
  Report report = summarize(seen, 1, {});
  EXPECT_THAT(to_table(report), HasSubstr("400 prompt tokens, "));
  EXPECT_TRUE(boost::json::parse(to_json(report)).at("cached_tokens").is_null());
  seen[0].cached_tokens = 0;
  seen[1].cached_tokens = 48;
  report = summarize(seen, 1, {});
  report.seed = 77;
  EXPECT_THAT(to_table(report),
              HasSubstr("400 prompt tokens (48 of them, 12.0 %, from the prefix cache), "));
  EXPECT_THAT(to_table(report), HasSubstr("--seed 77 "));
  EXPECT_THAT(to_table(report), Not(HasSubstr("stopped early")));
  report.planned = 500;
  EXPECT_THAT(to_table(report),
              HasSubstr("stopped early: these are the requests that had ended, of 500"));
  EXPECT_EQ(boost::json::parse(to_json(report)).at("seed").as_int64(), 77);
}

// Events as the OpenAI API reference shows them for streamed completions.
constexpr std::string_view kEvents =
    ": ping\n\n"
    "data: "
    "{\"choices\":[{\"index\":0,\"text\":\"One\",\"finish_reason\":null}],\"usage\":null}\r\n\r\n"
    "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"text\":\" two\",\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
    "data: [DONE]\n\n";

TEST(CompletionStream, CountsTextEventsHoweverTheBytesAreCut) {
  for (size_t piece = 1; piece < kEvents.size(); ++piece) {
    CompletionStream stream;
    size_t events = 0;
    for (size_t at = 0; at < kEvents.size(); at += piece)
      events += stream.feed(kEvents.substr(at, piece));
    ASSERT_EQ(events, 2u) << piece;
    EXPECT_TRUE(stream.done());
    EXPECT_EQ(stream.error(), "");
    EXPECT_EQ(stream.prompt_tokens(), 7u);
    EXPECT_EQ(stream.output_tokens(), 3u);
    EXPECT_EQ(stream.cached_tokens(), 4u);
  }
}

TEST(CompletionStream, ReportsErrorEventsAndGarbage) {
  CompletionStream failed;
  failed.feed("data: {\"error\":{\"message\":\"node lost\"}}\n\n");
  EXPECT_EQ(failed.error(), "node lost");
  CompletionStream garbage;
  garbage.feed("data: {\n");
  EXPECT_EQ(garbage.error(), "an event that is not JSON");
  CompletionStream endless;
  for (int i = 0; i < 3000; ++i) endless.feed(std::string(1024, 'x'));
  EXPECT_EQ(endless.error(), "an event longer than 1 MiB");
}

}  // namespace
}  // namespace tandem::bench
