// The router as its clients see it: real HTTP, the real control port, a node that makes its answers
// up.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/json.hpp>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "common/config/config.h"
#include "common/model/checkpoint.h"
#include "common/model/text.h"
#include "common/net/http_client.h"
#include "common/text/tokenizer.h"
#include "router/app/router.h"
#include "tests/integration/router/fake_node.h"

namespace tandem::router::test {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kModel = std::string(TANDEM_MODELS) + "/chat-6m";
const SteadyClock kClock;

struct Model {
  std::unique_ptr<model::Checkpoint> checkpoint;
  text::TextModel text;
};
const Model& the_model() {
  static const Model model = [] {
    Model m;
    m.checkpoint = std::move(*model::Checkpoint::open(kModel));
    m.text = std::move(*model::load_text(*m.checkpoint, kClock));
    return m;
  }();
  return model;
}

std::vector<control::Token> say(const std::string& text) {
  std::vector<control::Token> out;
  const auto ids = the_model().text.tokenizer->encode(text);
  for (TokenId id : *ids) {
    control::Token& t = out.emplace_back();
    t.set_id(id);
    t.set_logprob(-0.25F);
    t.add_top()->set_token(id);
    t.mutable_top(0)->set_logprob(-0.25F);
    t.add_top()->set_token(7);
    t.mutable_top(1)->set_logprob(-std::numeric_limits<float>::infinity());
  }
  return out;
}

// What a model would do: the text, cut at the task's limit.
Script speak(const control::Task& task, const std::string& text) {
  Script s;
  s.tokens = say(text);
  s.tokens.erase(s.tokens.begin(),
                 s.tokens.begin() + std::min<std::ptrdiff_t>(
                                        task.tokens_size() - static_cast<int>(task.prompt_tokens()),
                                        static_cast<std::ptrdiff_t>(s.tokens.size())));
  s.finish = control::FINISH_STOP;
  if (s.tokens.size() >= task.max_new_tokens()) {
    s.tokens.resize(task.max_new_tokens());
    s.finish = control::FINISH_LENGTH;
  }
  return s;
}

class RouterTest : public testing::Test {
 protected:
  // `yaml` is added to a file with the model and free ports.
  void boot(const std::string& yaml = "", const std::string& model_extra = "") {
    const std::string text = "model:\n  path: " + kModel + "\n" + model_extra +
                             "router:\n  control: {port: 0}\n" +
                             (yaml.find("http:") == yaml.npos ? "  http: {port: 0}\n" : "") + yaml;
    auto parsed = parse_cluster_config(text, "test.yaml", "/", {});
    ASSERT_TRUE(parsed) << parsed.error().detail;
    config_ = std::make_unique<ClusterConfig>(std::move(*parsed));
    sink_ = std::make_unique<LogSink>(Fd(::open("/dev/null", O_WRONLY)), kClock);
    router_ = std::make_unique<Router>(*config_, kClock, Logger(*sink_, LogLevel::kInfo));
    const Status started = router_->start("");
    ASSERT_TRUE(started) << started.error().detail;
    url_ = "http://127.0.0.1:" + std::to_string(router_->http_port());
    client_ = std::move(*HttpClient::create(url_));
  }

  FakeNode& add_node(FakeNodeOptions options = {}) {
    options.model_fingerprint = the_model().checkpoint->fingerprint();
    options.tokenizer_hash = std::string(the_model().text.tokenizer->hash());
    options.vocab = the_model().checkpoint->config().vocab;
    nodes_.push_back(std::make_unique<FakeNode>(router_->control_port(), std::move(options), kClock,
                                                Logger(*sink_, LogLevel::kInfo)));
    FakeNode& node = *nodes_.back();
    EXPECT_TRUE(wait([&] { return node.admitted() && get("/health/ready").status == 200; }))
        << node.refusal();
    return node;
  }
  FakeNode& add_speaker(std::string text, Duration token_time = {}) {
    FakeNodeOptions options;
    options.token_time = token_time;
    options.script = [text](const control::Task& task) { return speak(task, text); };
    return add_node(std::move(options));
  }

  template <typename F>
  static bool wait(F&& done, Duration limit = seconds(10)) {
    const TimePoint end = kClock.now() + limit;
    while (!done()) {
      if (kClock.now() > end) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  HttpReply send(HttpCall call) {
    Result<HttpReply> reply = client_->request(std::move(call));
    EXPECT_TRUE(reply) << (reply ? "" : reply.error().detail);
    return reply ? *reply : HttpReply{};
  }
  HttpReply get(const std::string& target, HttpHeaders headers = {}) {
    return send({.method = "GET", .target = target, .headers = std::move(headers), .body = {}});
  }
  HttpReply post(const std::string& target, const std::string& body, HttpHeaders headers = {}) {
    return send({.method = "POST", .target = target, .headers = std::move(headers), .body = body});
  }
  static std::string chat_body(const std::string& extra, const std::string& content = "hi") {
    return R"({"model":"chat-6m","messages":[{"role":"user","content":")" + content + "\"}]" +
           (extra.empty() ? "" : "," + extra) + "}";
  }
  HttpReply chat(const std::string& extra, const std::string& content = "hi") {
    return post("/v1/chat/completions", chat_body(extra, content));
  }
  HttpReply complete(const std::string& fields) {
    return post("/v1/completions", R"({"model":"chat-6m",)" + fields + "}");
  }
  static std::vector<std::string> events(const HttpReply& reply) {
    std::vector<std::string> out;
    size_t at = 0;
    while (at < reply.body.size()) {
      const size_t end = reply.body.find("\n\n", at);
      EXPECT_NE(end, reply.body.npos);
      if (end == reply.body.npos) break;
      EXPECT_EQ(reply.body.substr(at, 6), "data: ");
      out.push_back(reply.body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return out;
  }
  // The joined text of choice `index` of a stream.
  static std::string joined(const HttpReply& reply, int64_t index = 0) {
    std::string text;
    for (const std::string& e : events(reply)) {
      if (e == "[DONE]") continue;
      const json::value chunk = json::parse(e);
      for (const json::value& choice : chunk.at("choices").as_array()) {
        if (choice.at("index").as_int64() != index) continue;
        if (const json::value* t = choice.as_object().if_contains("text"))
          text += t->as_string().c_str();
        if (const json::value* d = choice.as_object().if_contains("delta")) {
          if (const json::value* c = d->as_object().if_contains("content"))
            text += c->as_string().c_str();
        }
      }
    }
    return text;
  }
  static std::string content(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body)
        .at("choices")
        .at(0)
        .at("message")
        .at("content")
        .as_string()
        .c_str();
  }
  static std::string param(const HttpReply& reply) {
    const json::value p = json::parse(reply.body).at("error").at("param");
    return p.is_string() ? std::string(p.as_string()) : "";
  }
  // One request written byte for byte, the whole answer until the server closes or `limit` passes.
  std::string raw(const std::vector<std::string>& pieces, Duration limit = seconds(5)) {
    namespace asio = boost::asio;
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::make_address("127.0.0.1"), router_->http_port()});
    for (const std::string& piece : pieces) {
      boost::system::error_code ec;
      asio::write(socket, asio::buffer(piece), ec);
      if (ec) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::string out;
    std::array<char, 4096> buffer;
    std::function<void()> read = [&] {
      socket.async_read_some(asio::buffer(buffer), [&](boost::system::error_code ec, size_t n) {
        if (ec) return;
        out.append(buffer.data(), n);
        read();
      });
    };
    read();
    io.run_for(std::chrono::duration_cast<std::chrono::milliseconds>(limit));
    return out;
  }

  void TearDown() override {
    client_.reset();
    nodes_.clear();
    if (router_) router_->stop(seconds(1));
  }

  std::unique_ptr<ClusterConfig> config_;
  std::unique_ptr<LogSink> sink_;
  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
  std::unique_ptr<HttpClient> client_;
  std::string url_;
};

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
    const auto encoded = the_model().text.tokenizer->encode(p);
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
      raw({head + std::to_string(body.size()) + "\r\n\r\n" + body}, milliseconds(300));
  EXPECT_NE(streamed.find("data: "), streamed.npos);
  EXPECT_TRUE(wait([&] { return node.running() == 0; }, seconds(2)));
  const std::string whole = chat_body("\"max_tokens\":3000");
  raw({head + std::to_string(whole.size()) + "\r\n\r\n" + whole}, milliseconds(300));
  EXPECT_TRUE(wait([&] { return node.running() == 0; }, seconds(2)));
  EXPECT_EQ(node.cancels(), 2U);
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
    const size_t prompt = the_model().text.tokenizer->encode("one two three")->size();
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
  EXPECT_NE(raw({head + "\r\n" + size + "\r\n" + body + "\r\n0\r\n\r\n"}, seconds(1)).find(" 200 "),
            std::string::npos);
  EXPECT_NE(
      raw({head + "Trailer: X\r\n\r\n" + size + ";name=value\r\n" + body + "\r\n0\r\nX: y\r\n\r\n"},
          seconds(1))
          .find(" 200 "),
      std::string::npos);
  std::vector<std::string> pieces{head + "\r\n"};
  for (char c : body) pieces.push_back(std::string("1\r\n") + c + "\r\n");
  pieces.push_back("0\r\n\r\n");
  EXPECT_NE(raw(pieces, seconds(1)).find(" 200 "), std::string::npos);
  const std::string bad = raw({head + "\r\nzz\r\n" + body + "\r\n0\r\n\r\n"}, seconds(1));
  EXPECT_NE(bad.find(" 400 "), bad.npos) << bad;
  const std::string both = raw({"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                                "5\r\nTransfer-Encoding: chunked\r\n\r\n" +
                                std::string(size) + "\r\n" + body + "\r\n0\r\n\r\n"},
                               seconds(1));
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

// One sample line of the text format, taken apart strictly; false if it is not one.
bool parse_sample(const std::string& line, std::string& name, std::string& labels, double& value) {
  size_t at = 0;
  auto word = [&](std::string& out) {
    const size_t begin = at;
    while (at < line.size() && (std::isalnum(static_cast<unsigned char>(line[at])) != 0 ||
                                line[at] == '_' || line[at] == ':'))
      ++at;
    out = line.substr(begin, at - begin);
    return !out.empty() && std::isdigit(static_cast<unsigned char>(out[0])) == 0;
  };
  if (!word(name)) return false;
  labels.clear();
  if (at < line.size() && line[at] == '{') {
    const size_t begin = at++;
    while (line[at] != '}') {
      std::string key;
      if (!word(key) || line.compare(at, 2, "=\"") != 0) return false;
      for (at += 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') continue;
        if (++at >= line.size() ||
            std::string_view("\\\"n").find(line[at]) == std::string_view::npos)
          return false;
      }
      if (++at >= line.size()) return false;
      if (line[at] == ',') ++at;
    }
    labels = line.substr(begin, ++at - begin);
  }
  if (at >= line.size() || line[at] != ' ') return false;
  char* end = nullptr;
  value = std::strtod(line.c_str() + at + 1, &end);
  return end == line.c_str() + line.size();
}

// Names, label escapes, buckets that grow and end in +Inf = count.
void expect_strict_exposition(const std::string& text) {
  std::string bucket_series;
  double last = 0;
  std::map<std::string, double> infinite;
  std::map<std::string, double> counts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    ASSERT_NE(end, text.npos);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty() || line[0] == '#') continue;
    std::string name;
    std::string labels;
    double value = 0;
    ASSERT_TRUE(parse_sample(line, name, labels, value)) << line;
    const size_t le = labels.find("le=\"");
    if (name.ends_with("_bucket") && le != labels.npos) {
      const std::string series = name + labels.substr(0, le);
      if (series != bucket_series) last = 0;
      bucket_series = series;
      EXPECT_GE(value, last) << line;
      last = value;
      if (labels.find("le=\"+Inf\"") != labels.npos)
        infinite[name.substr(0, name.size() - 7)] += value;
    }
    if (name.ends_with("_count")) counts[name.substr(0, name.size() - 6)] += value;
  }
  EXPECT_FALSE(infinite.empty());
  for (const auto& [name, value] : infinite) EXPECT_EQ(counts[name], value) << name;
}

TEST_F(RouterTest, MetricsStayReadableAndBounded) {  // case 37
  boot();
  add_speaker("x");
  chat("");
  EXPECT_EQ(post("/v1/chat/completions",
                 R"({"model":"a\"b\\c\nd","messages":[{"role":"user","content":"x"}]})")
                .status,
            404);
  const HttpReply before = get("/metrics");
  expect_strict_exposition(before.body);
  for (int i = 0; i < 1000; ++i) {
    post("/v1/chat/completions",
         R"({"model":"m)" + std::to_string(i) + R"(","messages":[{"role":"user","content":"x"}]})");
  }
  const HttpReply after = get("/metrics");
  expect_strict_exposition(after.body);
  auto lines = [](const std::string& s) { return std::count(s.begin(), s.end(), '\n'); };
  EXPECT_LE(lines(after.body), lines(before.body) + 40);
  EXPECT_EQ(after.body.find("m999"), after.body.npos);
  for (const auto& [key, value] : after.headers) {
    if (equal_ignoring_case(key, "Content-Type")) {
      EXPECT_EQ(value.rfind("text/plain", 0), 0U);
    }
  }
  for (const char* name : {"tandem_router_ttft_seconds_count 1", "tandem_router_queue_depth 0",
                           "tandem_router_requests_total{route=\"chat\",status=\"4xx\"} 1001"}) {
    EXPECT_NE(after.body.find(name), after.body.npos) << name;
  }
}

TEST_F(RouterTest, TheFirstTokenIsNotHeldBack) {  // failures.md 23
  boot();
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  add_speaker(words, milliseconds(50));
  const TimePoint start = kClock.now();
  std::optional<double> first;
  size_t pieces = 0;
  auto reply = client_->stream({.method = "POST",
                                .target = "/v1/chat/completions",
                                .headers = {},
                                .body = chat_body("\"max_tokens\":40,\"stream\":true")},
                               [&](std::string_view) {
                                 if (!first) first = to_seconds(kClock.now() - start);
                                 ++pieces;
                               });
  const double total = to_seconds(kClock.now() - start);
  ASSERT_TRUE(reply);
  ASSERT_TRUE(first);
  EXPECT_LT(*first, total / 4);
  EXPECT_GT(pieces, 20U);
}

TEST_F(RouterTest, ReadyFollowsTheNodes) {  // failures.md 26
  boot();
  EXPECT_EQ(get("/health/ready").status, 503);
  EXPECT_EQ(get("/health/live").status, 200);
  add_speaker("x");
  EXPECT_EQ(get("/health/ready").status, 200);
  nodes_.clear();
  EXPECT_TRUE(wait([&] { return get("/health/ready").status == 503; }));
  const json::value status = json::parse(get("/status").body);
  EXPECT_EQ(status.at("nodes").at(0).at("state").as_string(), "lost");
}

TEST_F(RouterTest, ADecodeNodesDeathIsAPause) {
  boot();
  std::string words;
  for (int i = 0; i < 60; ++i) words += "w" + std::to_string(i) + " ";
  add_speaker(words, milliseconds(5));
  std::string got;
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(150));
    FakeNodeOptions options;
    options.id = "decode-1";
    options.token_time = milliseconds(1);
    options.script = [words](const control::Task& task) { return speak(task, words); };
    options.model_fingerprint = the_model().checkpoint->fingerprint();
    options.tokenizer_hash = std::string(the_model().text.tokenizer->hash());
    options.vocab = the_model().checkpoint->config().vocab;
    auto other = std::make_unique<FakeNode>(router_->control_port(), std::move(options), kClock,
                                            Logger(*sink_, LogLevel::kInfo));
    wait([&] { return other->admitted(); });
    nodes_[0].reset();
    nodes_[0] = std::move(other);
  });
  const HttpReply reply = chat("\"max_tokens\":500,\"stream\":true");
  killer.join();
  EXPECT_EQ(joined(reply), words);
  EXPECT_EQ(events(reply).back(), "[DONE]");
  EXPECT_EQ(json::parse(get("/status").body).at("requests").at("resumes").as_int64(), 1);
}

TEST_F(RouterTest, AFailureAfterTheFirstTokenIsACleanErrorEvent) {
  boot("  admission: {max_retries: 0}\n");
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word ";
  add_speaker(words, milliseconds(5));
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(150));
    nodes_[0].reset();
  });
  const HttpReply reply = chat("\"max_tokens\":500,\"stream\":true");
  killer.join();
  nodes_.clear();
  EXPECT_EQ(reply.status, 200);
  const std::vector<std::string> all = events(reply);
  EXPECT_TRUE(json::parse(all.back()).as_object().contains("error")) << all.back();
}

TEST_F(RouterTest, AWrongNodeIsRefusedInPlainWords) {
  boot();
  FakeNodeOptions options;
  options.model_fingerprint = "0000";
  options.tokenizer_hash = std::string(the_model().text.tokenizer->hash());
  options.vocab = the_model().checkpoint->config().vocab;
  FakeNode node(router_->control_port(), std::move(options), kClock,
                Logger(*sink_, LogLevel::kInfo));
  EXPECT_TRUE(wait([&] { return !node.refusal().empty(); }));
  EXPECT_NE(node.refusal().find("model fingerprint is 0000 on decode-0 but"), std::string::npos)
      << node.refusal();
  EXPECT_EQ(get("/health/ready").status, 503);
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

TEST_F(RouterTest, StatusIsTheDocumentedDocument) {
  boot();
  add_speaker("one two three", milliseconds(2));
  for (int i = 0; i < 3; ++i) chat("\"max_tokens\":9");
  ASSERT_TRUE(wait([&] {
    const json::value s = json::parse(get("/status").body);
    return !s.at("history").as_array().empty() && !s.at("latency").at("ttft").at("p50").is_null();
  }));
  const json::value s = json::parse(get("/status").body);
  EXPECT_TRUE(s.at("ready").as_bool());
  EXPECT_EQ(s.at("requests").at("total").as_int64(), 3);
  EXPECT_EQ(s.at("nodes").at(0).at("kv").at("total").as_int64(), 4096);
  EXPECT_EQ(s.at("model").at("id").as_string(), "chat-6m");
  EXPECT_EQ(s.at("queues").at("prefill").at("capacity").as_int64(), 256);
}

}  // namespace
}  // namespace tandem::router::test
