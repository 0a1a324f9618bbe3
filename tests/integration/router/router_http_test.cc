// The router's HTTP API as its clients see it.
#include <atomic>
#include <boost/json.hpp>
#include <map>
#include <set>

#include "tests/integration/router/router_fixture.h"

namespace tandem::router::test {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(RouterTest, StreamedAndWholeAnswersAreTheSame) {
  boot();
  const std::string text =
      "Sure, I can book \xf0\x9f\x98\x80 a table caf\xc3\xa9\xe2\x80\x94today.";
  add_speaker(text, milliseconds(1));
  EXPECT_EQ(content(chat(R"("max_tokens":100)")), text);
  const HttpReply stream = chat(R"("max_tokens":100,"stream":true)");
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(joined(stream), text);
  for (const std::string stop :
       {"a table caf", "\xc3\xa9\xe2\x80\x94", "can book \xf0\x9f\x98\x80 a", "Sure"}) {
    const std::string field = R"("max_tokens":100,"stop":")" + stop + "\"";  // case 11
    const std::string want = text.substr(0, text.find(stop));
    const HttpReply whole = chat(field);
    EXPECT_EQ(content(whole), want);
    EXPECT_EQ(json::parse(whole.body).at("choices").at(0).at("finish_reason").as_string(), "stop");
    EXPECT_EQ(joined(chat(field + R"(,"stream":true)")), want);
  }
  EXPECT_TRUE(wait([&] { return nodes_[0]->running() == 0; }));  // a stop string ends the work, too
  EXPECT_GT(nodes_[0]->cancels(), 0U);
}

TEST_F(RouterTest, ChunksHaveOneShapeAndEndWithDone) {  // cases 12, 13
  boot();
  add_speaker("one two three four five", milliseconds(1));
  for (const char* options : {"", R"(,"stream_options":{"include_usage":false})",
                              R"(,"stream_options":{})", R"(,"stream_options":null)"}) {
    const HttpReply reply = chat(std::string(R"("max_tokens":4,"n":2,"stream":true)") + options);
    const std::vector<std::string> all = events(reply);
    ASSERT_GE(all.size(), 4U);
    EXPECT_EQ(all.back(), "[DONE]");
    std::set<std::string> ids;
    std::array<int, 2> finishes{};
    std::array<int, 2> roles{};
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      const json::value chunk = json::parse(all[i]);
      ids.insert(std::string(chunk.at("id").as_string()) + json::serialize(chunk.at("created")));
      ASSERT_EQ(chunk.at("choices").as_array().size(), 1U);
      const json::value& choice = chunk.at("choices").at(0);
      const auto index = static_cast<size_t>(choice.at("index").as_int64());
      finishes[index] += choice.at("finish_reason").is_null() ? 0 : 1;
      roles[index] += choice.at("delta").as_object().contains("role") ? 1 : 0;
      EXPECT_FALSE(choice.at("delta").as_object().contains("tool_calls"));
    }
    EXPECT_EQ(ids.size(), 1U);
    EXPECT_EQ(finishes, (std::array<int, 2>{1, 1}));
    EXPECT_EQ(roles, (std::array<int, 2>{1, 1}));
  }
  const HttpReply usage =
      chat(R"("max_tokens":4,"stream":true,"stream_options":{"include_usage":true})");
  const std::vector<std::string> all = events(usage);
  const json::value last = json::parse(all[all.size() - 2]);
  EXPECT_TRUE(last.at("choices").as_array().empty());
  EXPECT_EQ(last.at("usage").at("completion_tokens").as_int64(), 4);
}

TEST_F(RouterTest, PartsAndToolTurnsCountAsTheyShould) {  // cases 01, 02, 07
  boot();
  add_speaker("ok");
  auto prompt_tokens = [&](const std::string& messages) {
    const HttpReply r = post("/v1/chat/completions",
                             R"({"model":"chat-6m","max_tokens":1,"messages":)" + messages + "}");
    EXPECT_EQ(r.status, 200) << r.body;
    return r.status == 200 ? json::parse(r.body).at("usage").at("prompt_tokens").as_int64() : -1;
  };
  EXPECT_EQ(
      prompt_tokens(
          R"([{"role":"user","content":[{"type":"text","text":"first half, "},{"type":"text","text":"second half"}]}])"),
      prompt_tokens(R"([{"role":"user","content":"first half, second half"}])"));
  EXPECT_EQ(prompt_tokens(R"([{"role":"user","content":"\ud83d\ude00"}])"),
            prompt_tokens("[{\"role\":\"user\",\"content\":\"\xf0\x9f\x98\x80\"}]"));
  const std::string calls =
      R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":2}"}}]})";
  std::set<int64_t> counts;
  for (const char* c : {"", R"("content":null,)", R"("content":"",)"}) {
    const std::string messages = R"([{"role":"user","content":"x"},{"role":"assistant",)" +
                                 std::string(c) + calls +
                                 R"(,{"role":"tool","tool_call_id":"c1","content":"5"}])";
    counts.insert(prompt_tokens(messages));
    const HttpReply t = post("/tokenize", R"({"messages":)" + messages + "}");
    ASSERT_EQ(t.status, 200) << t.body;
    const std::string ids = json::serialize(json::parse(t.body).at("tokens"));
    const HttpReply d = post("/detokenize", R"({"tokens":)" + ids + "}");
    EXPECT_EQ(d.body.find("None"), d.body.npos);
    EXPECT_EQ(d.body.find("null"), d.body.npos);
  }
  EXPECT_EQ(counts.size(), 1U);
  EXPECT_EQ(chat("\"stream\":true", "x \\ud83d y").status, 400);
  EXPECT_EQ(chat("\"stream\":false", "x \\ud83d y").status, 400);
}

TEST_F(RouterTest, BadRequestsAreToldAndTheNextOneWorks) {  // cases 03, 04, 05, 08, 09
  boot();
  add_speaker("fine");
  auto good = [&] { return content(chat("\"max_tokens\":5")) == "fine"; };
  EXPECT_EQ(param(chat(R"("logit_bias":{"99999999":5})")), "logit_bias");
  EXPECT_TRUE(good());
  for (const char* prompt : {"[-1]", "[4294967296]", "[1.5]", "[[1,2],[-7]]", "[1,\"a\"]"}) {
    EXPECT_EQ(complete("\"prompt\":" + std::string(prompt) + ",\"max_tokens\":1").status, 400)
        << prompt;
  }
  EXPECT_TRUE(good());
  for (const char* seed : {"18446744073709551616", "1.5", "\"7\""}) {
    EXPECT_EQ(chat("\"seed\":" + std::string(seed)).status, 400);
  }
  const std::string nest = std::string(20000, '[') + "0" + std::string(20000, ']');
  EXPECT_EQ(chat("\"x\":" + nest).status, 400);
  EXPECT_EQ(chat("\"tools\":" + nest).status, 400);
  EXPECT_EQ(get("/health").status, 200);
  const HttpReply twice = post(
      "/v1/chat/completions",
      R"({"model":"chat-6m","max_tokens":1,"max_tokens":4,"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b c d e"}]})");
  const HttpReply last = chat("\"max_tokens\":4", "b c d e");
  EXPECT_EQ(json::serialize(json::parse(twice.body).at("usage")),
            json::serialize(json::parse(last.body).at("usage")));
  EXPECT_EQ(post("/v1/chat/completions", "{\"model\":").status, 400);
  EXPECT_EQ(post("/v1/chat/completions", "").status, 400);
  EXPECT_EQ(param(chat("\"max_tokens\":100000")), "max_tokens");
  EXPECT_EQ(param(chat("\"max_tokens\":4090")), "max_tokens");
  std::string longer;
  for (int i = 0; i < 5000; ++i) longer += "word ";
  const HttpReply too_long = chat("", longer);
  EXPECT_EQ(too_long.status, 400);
  EXPECT_EQ(param(too_long), "messages");
  EXPECT_EQ(json::parse(too_long.body).at("error").at("code").as_string(),
            "context_length_exceeded");
  EXPECT_TRUE(good());
}

TEST_F(RouterTest, SeedsReachTheNodesAndRepeat) {  // case 05
  boot();
  FakeNode& node = add_speaker("x");
  for (const char* seed : {"-1", "-9223372036854775808", "-1", "7"}) {
    EXPECT_EQ(chat("\"n\":2,\"seed\":" + std::string(seed)).status, 200);
  }
  EXPECT_EQ(chat("").status, 200);
  EXPECT_EQ(chat("").status, 200);
  const std::vector<control::Task> seen = node.seen();
  ASSERT_EQ(seen.size(), 10U);
  EXPECT_EQ(seen[0].sampling().seed(), 0xffffffffffffffffU);
  EXPECT_EQ(seen[2].sampling().seed(), 0x8000000000000000U);
  EXPECT_EQ(seen[4].sampling().seed(), seen[0].sampling().seed());
  EXPECT_EQ(seen[5].sampling().seed(), seen[1].sampling().seed());
  EXPECT_NE(seen[0].sampling().seed(), seen[1].sampling().seed());
  EXPECT_NE(seen[8].sampling().seed(), seen[9].sampling().seed());
}

TEST_F(RouterTest, EmptyStopsEndNothing) {  // case 06
  boot();
  add_speaker("some text that goes on");
  for (const char* stop : {"\"\"", "[]", "null", "[\"\",\"zzz\"]"}) {
    EXPECT_EQ(content(chat("\"max_tokens\":30,\"stop\":" + std::string(stop))),
              "some text that goes on")
        << stop;
  }
}

TEST_F(RouterTest, BatchedPromptsKeepTheirOrder) {  // case 10
  boot();
  FakeNodeOptions options;  // answers with the prompt's own last token, late ones first
  options.script = [](const control::Task& task) {
    Script s;
    for (int i = 0; i < 2; ++i)
      s.tokens.emplace_back().set_id(task.tokens(static_cast<int>(task.prompt_tokens()) - 1));
    return s;
  };
  add_node(std::move(options));
  const HttpReply texts = complete(
      R"("prompt":["1 2 3","a b c","x"],"n":2,"max_tokens":2,"temperature":0,"echo":true)");
  ASSERT_EQ(texts.status, 200) << texts.body;
  const json::value answer = json::parse(texts.body);
  ASSERT_EQ(answer.at("choices").as_array().size(), 6U);
  const std::vector<std::string> prompts{"1 2 3", "a b c", "x"};
  std::string ids;
  for (size_t i = 0; i < 6; ++i) {
    const json::value& choice = answer.at("choices").at(i);
    EXPECT_EQ(choice.at("index").as_int64(), static_cast<int64_t>(i));
    EXPECT_EQ(std::string(choice.at("text").as_string()).rfind(prompts[i / 2], 0), 0U);
  }
  for (const std::string& p : prompts) {
    const auto encoded = tokenizer().encode(p);
    ids += ids.empty() ? "[" : ",[";
    for (size_t i = 0; i < encoded->size(); ++i)
      ids += (i == 0 ? "" : ",") + std::to_string((*encoded)[i]);
    ids += "]";
  }
  const HttpReply arrays =
      complete("\"prompt\":[" + ids + R"(],"n":2,"max_tokens":2,"temperature":0,"echo":true)");
  EXPECT_EQ(json::serialize(json::parse(arrays.body).at("choices")),
            json::serialize(answer.at("choices")));
  EXPECT_EQ(json::parse(arrays.body).at("usage").at("prompt_tokens").as_int64(),
            answer.at("usage").at("prompt_tokens").as_int64());
}

TEST_F(RouterTest, AClientThatLeavesFreesItsPlace) {  // case 16
  boot();
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  FakeNode& node = add_speaker(words, milliseconds(2));
  const std::string body = chat_body("\"max_tokens\":3000,\"stream\":true");
  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ";
  const std::string streamed =
      raw({head + std::to_string(body.size()) + "\r\n\r\n" + body},
          [](const std::string& answer) { return answer.find("data: ") != answer.npos; });
  EXPECT_NE(streamed.find("data: "), streamed.npos);
  EXPECT_TRUE(wait([&] { return node.running() == 0; }));
  const std::string whole = chat_body("\"max_tokens\":3000");
  raw({head + std::to_string(whole.size()) + "\r\n\r\n" + whole},
      [&](const std::string&) { return node.running() > 0; });
  // More where a Cancel crosses what the node sends.
  EXPECT_TRUE(wait([&] { return node.cancels() >= 2 && node.running() == 0; }));
  EXPECT_EQ(chat("\"max_tokens\":3").status, 200);
}

TEST_F(RouterTest, LogprobsAreFiniteSortedAndAligned) {  // cases 17, 18
  boot();
  add_speaker(" four five");
  const HttpReply chat_reply = chat(R"("max_tokens":2,"logprobs":true,"top_logprobs":2)");
  const json::value content_list =
      json::parse(chat_reply.body).at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(content_list.as_array().size(), 2U);
  EXPECT_EQ(content_list.at(0).at("top_logprobs").at(1).at("logprob").to_number<double>(), -9999.0);
  for (const char* extra :
       {R"("max_tokens":0)", R"("max_tokens":1)", R"("max_tokens":0,"temperature":1,"top_k":1)"}) {
    const HttpReply reply =
        complete(R"("prompt":"one two three","echo":true,"logprobs":1,)" + std::string(extra));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json::value choice = json::parse(reply.body).at("choices").at(0);
    EXPECT_EQ(std::string(choice.at("text").as_string()).rfind("one two three", 0), 0U);
    const size_t prompt = tokenizer().encode("one two three")->size();
    const size_t want = prompt + (std::string_view(extra) == R"("max_tokens":1)" ? 1 : 0);
    const json::value& logprobs = choice.at("logprobs");
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(logprobs.at(key).as_array().size(), want) << key;
    }
    EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
    EXPECT_EQ(logprobs.at("token_logprobs").at(1).to_number<double>(), -2.0);
    EXPECT_EQ(logprobs.at("text_offset").at(1).as_int64(),
              static_cast<int64_t>(std::string(logprobs.at("tokens").at(0).as_string()).size()));
  }
}

TEST_F(RouterTest, AnEchoAloneNeedsNoNode) {
  boot();
  const HttpReply reply = complete(R"("prompt":"one","echo":true,"max_tokens":0)");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body).at("choices").at(0).at("text").as_string(), "one");
}

TEST_F(RouterTest, EndTokensAreTheModels) {  // case 29, router's side
  boot();
  FakeNode& node = add_speaker("x");
  chat("");
  chat("\"ignore_eos\":true");
  chat("\"stop_token_ids\":[77]");
  const auto seen = node.seen();
  ASSERT_EQ(seen.size(), 3U);
  auto stops = [&](size_t i) {
    return std::vector<int>(seen[i].stop_tokens().begin(), seen[i].stop_tokens().end());
  };
  EXPECT_EQ(stops(0), (std::vector<int>{2, 0}));
  EXPECT_TRUE(stops(1).empty());
  EXPECT_EQ(stops(2), (std::vector<int>{2, 0, 77}));
}

TEST_F(RouterTest, ChunkedBodies) {  // case 34
  boot();
  add_speaker("fine");
  const std::string body = chat_body("\"max_tokens\":5");
  const std::string head =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: "
      "chunked\r\n";
  char size[16];
  std::snprintf(size, sizeof(size), "%zx", body.size());
  EXPECT_NE(raw({head + "\r\n" + size + "\r\n" + body + "\r\n0\r\n\r\n"}).find(" 200 "),
            std::string::npos);
  EXPECT_NE(
      raw({head + "Trailer: X\r\n\r\n" + size + ";name=value\r\n" + body + "\r\n0\r\nX: y\r\n\r\n"})
          .find(" 200 "),
      std::string::npos);
  std::vector<std::string> pieces{head + "\r\n"};
  for (char c : body) pieces.push_back(std::string("1\r\n") + c + "\r\n");
  pieces.push_back("0\r\n\r\n");
  EXPECT_NE(raw(pieces).find(" 200 "), std::string::npos);
  const std::string bad = raw({head + "\r\nzz\r\n" + body + "\r\n0\r\n\r\n"});
  EXPECT_NE(bad.find(" 400 "), bad.npos) << bad;
  const std::string both =
      raw({"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
           "5\r\nTransfer-Encoding: chunked\r\n\r\n" +
           std::string(size) + "\r\n" + body + "\r\n0\r\n\r\n"});
  EXPECT_EQ(both.find("HTTP/1.1", 5), both.npos) << both;  // never two readings
}

TEST_F(RouterTest, PreflightsNeedNoKeyAndRefusalsCarryCors) {  // case 35
  boot("  http: {port: 0, api_keys: [\"secret-key-1\"]}\n");
  const HttpHeaders origin{{"Origin", "http://a.example"}};
  HttpHeaders preflight = origin;
  preflight.emplace_back("Access-Control-Request-Method", "POST");
  preflight.emplace_back("Access-Control-Request-Headers", "authorization,content-type");
  const HttpReply options = send(
      {.method = "OPTIONS", .target = "/v1/chat/completions", .headers = preflight, .body = {}});
  EXPECT_TRUE(options.status == 200 || options.status == 204);
  auto header = [](const HttpReply& reply, std::string_view name) {
    for (const auto& [key, value] : reply.headers) {
      if (equal_ignoring_case(key, name)) return value;
    }
    return std::string();
  };
  EXPECT_NE(header(options, "Access-Control-Allow-Methods").find("POST"), std::string::npos);
  EXPECT_NE(header(options, "Access-Control-Allow-Headers"), "");
  const HttpReply denied = post("/v1/chat/completions", chat_body(""), origin);
  EXPECT_EQ(denied.status, 401);
  EXPECT_NE(header(denied, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(json::parse(denied.body).at("error").at("code").as_string(), "invalid_api_key");
  EXPECT_EQ(get("/status").status, 401);
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/v1/models", {{"Authorization", "Bearer wrong"}}).status, 401);
  EXPECT_EQ(get("/v1/models", {{"Authorization", "Bearer secret-key-1"}}).status, 200);
  EXPECT_EQ(get("/health/live").status, 200);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(get("/").status, 200);
}

TEST_F(RouterTest, ModelIdsWithSlashes) {  // case 36
  boot("", "  id: \"org/name v1\"\n");
  EXPECT_EQ(get("/v1/models/org/name%20v1").status, 200);
  EXPECT_EQ(get("/v1/models/org%2Fname%20v1").status, 200);
  EXPECT_EQ(get("/v1/models?x=1").status, 200);
  for (const char* path : {"/v1/models/nope", "/v1/models/", "//v1/models", "/v1", "/v2/models"}) {
    const HttpReply reply = get(path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_TRUE(json::parse(reply.body).as_object().contains("error")) << path;
  }
  EXPECT_EQ(json::parse(get("/v1/models").body).at("data").at(0).at("id").as_string(),
            "org/name v1");
  EXPECT_EQ(get("/v1/chat/completions").status, 405);
}

TEST_F(RouterTest, ALongTextHoldsNobodyUp) {
  boot("  http: {port: 0, threads: 1}\n");
  add_speaker("fine");
  // A letter outside the ranges that are tokenized quickly, so that this takes about a second.
  std::string text = "\u0939";
  for (int i = 0; i < 600'000; ++i) text += "ab ";
  std::atomic<bool> done{false};
  std::thread slow([&] {
    const auto other = std::move(*HttpClient::create(url_));
    const auto reply = other->request({.method = "POST",
                                       .target = "/tokenize",
                                       .headers = {},
                                       .body = R"({"prompt":")" + text + "\"}"});
    EXPECT_TRUE(reply && reply->status == 200);
    done = true;
  });
  std::this_thread::sleep_for(milliseconds(100));  // its body is read by now, or still being sent
  int answered = 0;
  while (!done) answered += chat("\"max_tokens\":2").status == 200 ? 1 : 0;
  slow.join();
  EXPECT_GE(answered, 3);
  const std::string prompt = R"({"model":"chat-6m","max_tokens":3,"prompt":")" + text + "\"}";
  const HttpReply refused = post("/v1/completions", prompt);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("context_length_exceeded"), refused.body.npos);
  const HttpReply long_chat =
      post("/v1/chat/completions",
           chat_body("\"max_tokens\":3,\"user\":\"" + std::string(70'000, 'u') + "\""));
  EXPECT_EQ(long_chat.status, 200) << long_chat.body;
}

TEST_F(RouterTest, TokenizeAndBack) {
  boot();
  const HttpReply t =
      post("/tokenize",
           R"({"model":"chat-6m","prompt":"hello<|im_end|> there","return_token_strs":true})");
  ASSERT_EQ(t.status, 200) << t.body;
  const json::value v = json::parse(t.body);
  EXPECT_EQ(v.at("count").as_int64(), static_cast<int64_t>(v.at("tokens").as_array().size()));
  EXPECT_EQ(v.at("token_strs").as_array().size(), v.at("tokens").as_array().size());
  EXPECT_EQ(v.at("max_model_len").as_int64(), 4096);
  EXPECT_NE(json::serialize(v.at("tokens")).find(",2,"),
            std::string::npos);  // case 22: markers are the tokens
  const HttpReply d = post("/detokenize", R"({"tokens":)" + json::serialize(v.at("tokens")) + "}");
  EXPECT_EQ(json::parse(d.body).at("prompt").as_string(), "hello<|im_end|> there");
  EXPECT_EQ(post("/tokenize", R"({"model":"nope","prompt":"x"})").status, 404);
  EXPECT_EQ(post("/tokenize", R"({"prompt":7})").status, 400);
  EXPECT_EQ(post("/detokenize", R"({"tokens":[99999]})").status, 400);
}

}  // namespace
}  // namespace tandem::router::test
