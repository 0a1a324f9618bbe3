// Parsing and checking of request bodies: what a client may send, what it is told otherwise.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "router/api/request.h"

namespace tandem::router {
namespace {

constexpr ApiLimits kLimits{.vocab = 4096, .context = 512};

std::string chat(std::string_view extra,
                 std::string_view messages = R"([{"role":"user","content":"hi"}])") {
  std::string body = R"({"model":"M","messages":)";
  body += messages;
  if (!extra.empty()) body += ',';
  body += extra;
  return body + "}";
}

std::string completion(std::string_view prompt, std::string_view extra = "") {
  std::string body = R"({"model":"M","prompt":)";
  body += prompt;
  if (!extra.empty()) body += ',';
  body += extra;
  return body + "}";
}

Error chat_error(std::string_view extra) {
  Result<ChatRequest> request = parse_chat_request(chat(extra), kLimits);
  EXPECT_FALSE(request.has_value()) << extra;
  return request ? Error{} : request.error();
}

std::string contents(const ChatRequest& request, size_t message = 0) {
  const boost::json::value messages = boost::json::parse(request.prompt.messages);
  return std::string(std::string_view(messages.at(message).at("content").as_string()));
}

Result<ChatRequest> with_messages(std::string_view messages) {
  return parse_chat_request(chat("", messages), kLimits);
}

TEST(ChatRequest, TextPartsAreJoinedInOrder) {  // case 01
  auto parts = with_messages(R"([{"role":"user","content":[{"type":"text","text":"first half, "},
                                 {"type":"text","text":"second half"}]}])");
  auto joined = with_messages(R"([{"role":"user","content":"first half, second half"}])");
  ASSERT_TRUE(parts && joined);
  EXPECT_EQ(parts->prompt.messages, joined->prompt.messages);
  auto none = with_messages(R"([{"role":"user","content":[]}])");
  ASSERT_TRUE(none);
  EXPECT_EQ(contents(*none), "");
}

TEST(ChatRequest, FaultsNameTheirPlaceInTheMessages) {
  auto param = [](std::string_view messages) {
    auto request = with_messages(messages);
    return request ? std::string("accepted") : request.error().param;
  };
  EXPECT_EQ(param(R"([{"role":"user","content":"a"},{"role":"user","content":"a"},
                     {"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"),
            "messages[2].content[0].type");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"text"}]}])"),
            "messages[0].content[0].text");
  EXPECT_EQ(param(R"([{"role":"user","content":[7]}])"), "messages[0].content[0]");
  EXPECT_EQ(param(R"([{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":null}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"alien","content":"a"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":3,"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(param(R"(["hi"])"), "messages[0]");
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("{}"), "messages");
  EXPECT_EQ(param("null"), "messages");
  EXPECT_EQ(
      param(R"([{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{}}]}])"),
      "messages[0].tool_calls[0].function.name");
}

TEST(ChatRequest, AssistantTurnWithToolCallsNeedsNoContent) {  // case 02
  for (std::string_view content : {"", R"("content":null,)", R"("content":"",)"}) {
    const std::string messages =
        R"([{"role":"user","content":"2+3"},{"role":"assistant",)" + std::string(content) +
        R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":2}"}}]},
           {"role":"tool","tool_call_id":"c1","content":"5"}])";
    auto request = with_messages(messages);
    ASSERT_TRUE(request) << content;
    EXPECT_EQ(contents(*request, 1), "");
    const boost::json::value out = boost::json::parse(request->prompt.messages);
    EXPECT_EQ(out.at(1).at("tool_calls").at(0).at("function").at("arguments").as_string(),
              "{\"a\":2}");
    EXPECT_EQ(out.at(2).at("tool_call_id").as_string(), "c1");
  }
}

TEST(ChatRequest, LogitBiasKeysMustBeTokensOfTheModel) {  // case 03
  for (std::string_view key :
       {"99999999", "4096", "-1", "1.5", "x", "", " 1", "18446744073709551617"}) {
    const Error error = chat_error(R"("logit_bias":{")" + std::string(key) + R"(":5})");
    EXPECT_EQ(error.param, "logit_bias") << key;
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(chat_error(R"("logit_bias":{"1":101})").param, "logit_bias");
  EXPECT_EQ(chat_error(R"("logit_bias":{"1":"5"})").param, "logit_bias");
  EXPECT_EQ(chat_error(R"("logit_bias":[1])").param, "logit_bias");
  auto good = parse_chat_request(chat(R"("logit_bias":{"4095":-100,"0":2.5})"), kLimits);
  ASSERT_TRUE(good);
  const std::vector<std::pair<TokenId, float>> want{{0, 2.5F}, {4095, -100.0F}};
  EXPECT_EQ(good->common.sampling.logit_bias, want);
}

TEST(ChatRequest, SeedIsASigned64BitInteger) {  // case 05
  for (std::string_view bad :
       {"18446744073709551616", "9223372036854775808", "1.5", "\"7\"", "true", "1e30", "[1]"}) {
    EXPECT_EQ(chat_error("\"seed\":" + std::string(bad)).param, "seed") << bad;
  }
  auto seed = [](std::string_view text) {
    auto request = parse_chat_request(chat("\"seed\":" + std::string(text)), kLimits);
    return request ? request->common.sampling.seed : std::nullopt;
  };
  EXPECT_EQ(seed("-1"), -1);
  EXPECT_EQ(seed("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(seed("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(seed("null"), std::nullopt);
  EXPECT_EQ(choice_seed(-1, 0), 0xffffffffffffffffU);
  EXPECT_EQ(choice_seed(42, 0), 42U);
  EXPECT_NE(choice_seed(42, 1), choice_seed(42, 2));
  EXPECT_NE(choice_seed(42, 1), choice_seed(43, 0));
}

TEST(ChatRequest, EmptyStopStringsMeanNoStop) {  // case 06
  auto stops = [](std::string_view text) {
    auto request = parse_chat_request(chat("\"stop\":" + std::string(text)), kLimits);
    EXPECT_TRUE(request) << text;
    return request ? request->common.stop : std::vector<std::string>{"failed"};
  };
  EXPECT_TRUE(stops("\"\"").empty());
  EXPECT_TRUE(stops("[]").empty());
  EXPECT_TRUE(stops("null").empty());
  EXPECT_EQ(stops(R"(["","zzz"])"), std::vector<std::string>{"zzz"});
  EXPECT_EQ(stops(R"("x")"), std::vector<std::string>{"x"});
  EXPECT_EQ(chat_error(R"("stop":[1])").param, "stop[0]");
  EXPECT_EQ(chat_error(R"("stop":7)").param, "stop");
  EXPECT_EQ(
      chat_error(
          R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])")
          .param,
      "stop");
}

TEST(Body, HalfASurrogatePairIsRefusedAndTheWholePairIsTheEmoji) {  // case 07
  for (std::string_view bad : {R"(x \ud83d y)", R"(x \ude00)", R"(\ud83d\ud83d)", R"(\ud83d)"}) {
    auto request = with_messages(R"([{"role":"user","content":")" + std::string(bad) + "\"}]");
    ASSERT_FALSE(request) << bad;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument);
  }
  auto pair = with_messages(R"([{"role":"user","content":"\ud83d\ude00"}])");
  ASSERT_TRUE(pair);
  EXPECT_EQ(contents(*pair), "\xf0\x9f\x98\x80");
  EXPECT_FALSE(with_messages("[{\"role\":\"user\",\"content\":\"\xff\"}]"));
  EXPECT_FALSE(with_messages("[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]"));
  auto nul = with_messages(R"([{"role":"user","content":"a\u0000b"}])");
  ASSERT_TRUE(nul);
  EXPECT_EQ(contents(*nul), std::string("a\0b", 3));
}

TEST(Body, DeepNestingIsRefused) {  // case 08
  const std::string nest = std::string(20000, '[') + "0" + std::string(20000, ']');
  for (std::string_view field : {"\"x\":", "\"tools\":"}) {
    EXPECT_EQ(chat_error(std::string(field) + nest).code, ErrorCode::kInvalidArgument);
  }
  const std::string fine = std::string(40, '[') + "0" + std::string(40, ']');
  EXPECT_TRUE(parse_chat_request(chat("\"x\":" + fine), kLimits));
}

TEST(Body, TheLastOfARepeatedKeyCounts) {  // case 09
  auto request = parse_chat_request(
      R"({"model":"M","max_tokens":1,"max_tokens":4,"messages":[{"role":"user","content":"a"}],
          "messages":[{"role":"user","content":"b c","content":"b c d e"}]})",
      kLimits);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->common.max_tokens, 4U);
  EXPECT_EQ(contents(*request), "b c d e");
}

TEST(Body, MalformedTextIsToldAtItsByte) {
  for (std::string_view bad :
       {"", " ", "{", "[]", "\"x\"", "{\"model\":}", "{\"a\":1}x", "nul", "{'a':1}", "{\"a\":01}",
        "{\"a\":NaN}", "{\"a\":1e999999999999}", "\xef\xbb\xbf{}"}) {
    auto request = parse_chat_request(bad, kLimits);
    ASSERT_FALSE(request) << bad;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument) << bad;
    EXPECT_FALSE(request.error().detail.empty());
  }
  EXPECT_NE(parse_chat_request("{\"model\":}", kLimits).error().detail.find("byte"),
            std::string::npos);
}

TEST(Body, WrongTypesNameTheField) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"("temperature":"1")", "temperature"},
      {R"("temperature":2.1)", "temperature"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":1e999)", "temperature"},
      {R"("top_p":1.5)", "top_p"},
      {R"("top_p":-1)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("min_p":2)", "min_p"},
      {R"("n":0)", "n"},
      {R"("n":17)", "n"},
      {R"("n":"2")", "n"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":99999999999)", "max_tokens"},
      {R"("max_tokens":513)", "max_tokens"},
      {R"("max_completion_tokens":513)", "max_completion_tokens"},
      {R"("stream":1)", "stream"},
      {R"("stream_options":5)", "stream_options"},
      {R"("stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":-3)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("logprobs":5)", "logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("stop_token_ids":[4096])", "stop_token_ids[0]"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"function","function":{"name":1}}])", "tools[0].function.name"},
      {R"("tools":[1])", "tools[0]"},
      {R"("tool_choice":"maybe")", "tool_choice"},
      {R"("response_format":{})", "response_format.type"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("ignore_eos":"yes")", "ignore_eos"},
  };
  for (const auto& [text, param] : cases) {
    const Error error = chat_error(text);
    EXPECT_EQ(error.param, param) << text;
    EXPECT_EQ(error_traits(error.code).http_status, 400) << text;
  }
  EXPECT_EQ(
      parse_chat_request(R"({"messages":[{"role":"user","content":"a"}]})", kLimits).error().param,
      "model");
  EXPECT_EQ(parse_chat_request(R"({"model":7,"messages":[]})", kLimits).error().param, "model");
}

TEST(Body, WhatCannotBeHonouredIsRefusedByName) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"("response_format":{"type":"json_object"})", "response_format.type"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
      {R"("guided_regex":"a+")", "guided_regex"},
      {R"("best_of":3)", "best_of"},
      {R"("functions":[{"name":"f"}])", "functions"},
      {R"("prompt_logprobs":1)", "prompt_logprobs"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("function_call":{"name":"f"})", "function_call"},
      {R"("cache_salt":"mine")", "cache_salt"},
      {R"("return_token_ids":true)", "return_token_ids"},
      {R"("return_tokens_as_token_ids":true)", "return_tokens_as_token_ids"},
      {R"("kv_transfer_params":{"do_remote_decode":true})", "kv_transfer_params"},
      {R"("regex":"a+")", "regex"},
      {R"("grammar":"root ::= x")", "grammar"},
      {R"("lora_path":"x")", "lora_path"},
      {R"("n_predict":3)", "n_predict"},
      {R"("repeat_penalty":1.1)", "repeat_penalty"},
  };
  for (const auto& [text, param] : cases) {
    const Error error = chat_error(text);
    EXPECT_EQ(error.param, param) << text;
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << text;
  }
}

TEST(Body, HintsAndUnknownFieldsAreIgnored) {
  auto request = parse_chat_request(
      chat(R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","zzz":[1,{"a":2}],
              "parallel_tool_calls":true,"response_format":{"type":"text"},"n":2,"best_of":2,
              "temperature":null,"stop":null,"stream_options":null,"modalities":["text"],"suffix":null,
              "function_call":"auto","return_token_ids":false,"cache_salt":null)"),
      kLimits);
  ASSERT_TRUE(request) << request.error().detail;
  EXPECT_EQ(request->common.n, 2U);
  EXPECT_EQ(request->common.sampling.temperature, 1);
}

TEST(Body, UsageInAStreamMustBeAskedFor) {  // case 12
  auto usage = [](std::string_view options) {
    auto request = parse_chat_request(chat("\"stream\":true" + std::string(options)), kLimits);
    EXPECT_TRUE(request) << options;
    return request && request->common.include_usage;
  };
  EXPECT_FALSE(usage(""));
  EXPECT_FALSE(usage(R"(,"stream_options":{"include_usage":false})"));
  EXPECT_FALSE(usage(R"(,"stream_options":{})"));
  EXPECT_FALSE(usage(R"(,"stream_options":null)"));
  EXPECT_TRUE(usage(R"(,"stream_options":{"include_usage":true})"));
}

TEST(Body, ToolsReachTheTemplateUnlessChoiceIsNone) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}}])";
  auto plain = parse_chat_request(chat(tools), kLimits);
  ASSERT_TRUE(plain);
  EXPECT_NE(plain->prompt.tools.find(R"("parameters":{"b":1,"a":2})"),
            std::string::npos);  // order kept
  EXPECT_TRUE(
      parse_chat_request(chat(tools + R"(,"tool_choice":"none")"), kLimits)->prompt.tools.empty());
  EXPECT_FALSE(
      parse_chat_request(chat(tools + R"(,"tool_choice":"auto")"), kLimits)->prompt.tools.empty());
}

TEST(Sampling, TinyTemperatureAndTopPAreGreedy) {  // case 38
  for (std::string_view t : {"0.0001", "1e-7", "1e-45", "0", "1e-320"}) {
    for (std::string_view p : {"0.0001", "0", "1"}) {
      auto request = parse_chat_request(
          chat("\"temperature\":" + std::string(t) + ",\"top_p\":" + std::string(p)), kLimits);
      ASSERT_TRUE(request) << t << " " << p;
      EXPECT_EQ(request->common.sampling.temperature, 0) << t;
    }
  }
  auto zero_mass = parse_chat_request(chat(R"("temperature":2,"top_p":0)"), kLimits);
  ASSERT_TRUE(zero_mass);
  EXPECT_EQ(zero_mass->common.sampling.top_k, 1);
  EXPECT_EQ(zero_mass->common.sampling.top_p, 1);
  EXPECT_EQ(zero_mass->common.sampling.temperature, 2);
}

TEST(Sampling, WhatARequestDoesNotSayTheModelDoes) {
  ApiLimits limits = kLimits;
  limits.sampling = {.temperature = 0.6,
                     .top_p = 0.95,
                     .top_k = 20,
                     .min_p = 0.1,
                     .repetition_penalty = 1.05,
                     .chat_max_tokens = 0};
  for (const char* silent : {"", R"("temperature":null,"top_k":null)"}) {
    const auto request = parse_chat_request(chat(silent), limits);
    ASSERT_TRUE(request);
    const SamplingFields& s = request->common.sampling;
    EXPECT_EQ(s.temperature, 0.6);
    EXPECT_EQ(s.top_p, 0.95);
    EXPECT_EQ(s.top_k, 20);
    EXPECT_EQ(s.min_p, 0.1);
    EXPECT_EQ(s.repetition_penalty, 1.05);
  }
  const auto other = parse_completion_request(
      completion("\"x\"",
                 R"("temperature":1,"top_p":1,"top_k":-1,"min_p":0,"repetition_penalty":1)"),
      limits);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->common.sampling.temperature, 1);
  EXPECT_EQ(other->common.sampling.top_p, 1);
  EXPECT_EQ(other->common.sampling.top_k, 0);
  EXPECT_EQ(other->common.sampling.min_p, 0);
  EXPECT_EQ(other->common.sampling.repetition_penalty, 1);
  limits.sampling = {.temperature = 1e-9, .top_k = 1000000};  // as if the request had said so
  const auto greedy = parse_chat_request(chat(""), limits);
  ASSERT_TRUE(greedy);
  EXPECT_EQ(greedy->common.sampling.temperature, 0);
  EXPECT_EQ(greedy->common.sampling.top_k, 4096);
}

TEST(Sampling, DefaultsAreTold) {
  EXPECT_EQ(sampling_defaults_json({}), "{}");
  EXPECT_EQ(sampling_defaults_json(chat_sampling({})), R"({"temperature":0.7,"top_p":0.9})");
  EXPECT_EQ(sampling_defaults_json(chat_sampling({.top_p = 0.8})), R"({"temperature":0.7})");
  EXPECT_EQ(sampling_defaults_json(chat_sampling({.temperature = 0})), "{}");
  EXPECT_EQ(sampling_members_json({.temperature = 0.5}),
            R"("default_sampling_params":{"temperature":0.5},"chat_sampling_params":{})");
  EXPECT_EQ(sampling_defaults_json({.temperature = 0.5, .top_k = 20, .chat_max_tokens = 64}),
            R"({"temperature":0.5,"top_k":20,"max_tokens":64})");
}

TEST(CompletionRequest, ImpossibleTokenIdsAreNamed) {  // case 04
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"[-1]", "prompt[0]"},
      {"[4294967296]", "prompt[0]"},
      {"[1.5]", "prompt[0]"},
      {"[[1,2],[-7]]", "prompt[1][0]"},
      {"[1,\"a\"]", "prompt[1]"},
      {"[4096]", "prompt[0]"},
      {"[1e300]", "prompt[0]"},
      {"[\"a\",1]", "prompt[1]"},
      {"[[1],\"a\"]", "prompt[1]"},
      {"[[]]", "prompt[0]"},
      {"[]", "prompt"},
      {"{}", "prompt"},
      {"null", "prompt"},
      {"7", "prompt"},
      {"[null]", "prompt[0]"},
      {"[[[1]]]", "prompt[0][0]"},
      {"[18446744073709551616]", "prompt[0]"}};
  for (const auto& [prompt, param] : cases) {
    auto request = parse_completion_request(completion(prompt), kLimits);
    ASSERT_FALSE(request) << prompt;
    EXPECT_EQ(request.error().param, param) << prompt;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument) << prompt;
  }
}

TEST(CompletionRequest, PromptsKeepTheirOrder) {  // case 10
  auto texts = parse_completion_request(
      completion(R"(["1 2 3","a b c","x"])", R"("n":2,"echo":true)"), kLimits);
  ASSERT_TRUE(texts);
  ASSERT_EQ(texts->prompts.size(), 3U);
  EXPECT_EQ(std::get<std::string>(texts->prompts[1]), "a b c");
  auto ids = parse_completion_request(completion("[[1,2],[3]]"), kLimits);
  ASSERT_TRUE(ids);
  EXPECT_EQ(std::get<std::vector<TokenId>>(ids->prompts[0]), (std::vector<TokenId>{1, 2}));
  auto one = parse_completion_request(completion("[1,2.0,3]"), kLimits);
  ASSERT_TRUE(one);
  EXPECT_EQ(std::get<std::vector<TokenId>>(one->prompts[0]), (std::vector<TokenId>{1, 2, 3}));
}

TEST(CompletionRequest, LegacyFields) {
  auto scoring = parse_completion_request(
      completion("\"a\"", R"("max_tokens":0,"echo":true,"logprobs":1)"), kLimits);
  ASSERT_TRUE(scoring);  // case 18
  EXPECT_EQ(scoring->common.max_tokens, 0U);
  EXPECT_EQ(scoring->common.logprobs, 1);
  EXPECT_TRUE(scoring->echo);
  EXPECT_EQ(
      parse_completion_request(completion("\"a\"", R"("logprobs":true)"), kLimits).error().param,
      "logprobs");
  EXPECT_EQ(parse_completion_request(completion("\"a\"", R"("suffix":"z")"), kLimits).error().param,
            "suffix");
  EXPECT_EQ(parse_completion_request(completion("\"a\"", R"("suffix":"z")"), kLimits).error().code,
            ErrorCode::kUnsupported);
}

TEST(MaxTokens, FitsTheContext) {
  GenerationFields fields;
  EXPECT_EQ(resolve_max_tokens(fields, 100, kLimits, "messages", 0), 412U);
  EXPECT_EQ(resolve_max_tokens(fields, 100, kLimits, "prompt", 16), 16U);
  EXPECT_EQ(resolve_max_tokens(fields, 510, kLimits, "prompt", 16), 2U);
  EXPECT_EQ(resolve_max_tokens(fields, 512, kLimits, "messages", 0).error().param, "messages");
  EXPECT_EQ(resolve_max_tokens(fields, 600, kLimits, "prompt", 0).error().param, "prompt");
  fields.max_tokens = 412;
  EXPECT_EQ(resolve_max_tokens(fields, 100, kLimits, "messages", 0), 412U);
  EXPECT_EQ(resolve_max_tokens(fields, 101, kLimits, "messages", 0).error().param, "max_tokens");
  fields.min_tokens = 413;
  EXPECT_EQ(resolve_max_tokens(fields, 100, kLimits, "messages", 0).error().param, "min_tokens");
  fields = {};
  fields.max_tokens = 0;  // scoring may fill the context
  EXPECT_EQ(resolve_max_tokens(fields, 512, kLimits, "prompt", 16), 0U);
  EXPECT_FALSE(resolve_max_tokens(fields, 513, kLimits, "prompt", 16));
  ApiLimits capped = kLimits;
  capped.max_tokens = 50;
  EXPECT_EQ(resolve_max_tokens(GenerationFields{}, 100, capped, "messages", 0), 50U);
  capped.default_max_tokens = 20;
  EXPECT_EQ(resolve_max_tokens(GenerationFields{}, 100, capped, "messages", 0), 20U);
}

TEST(Tokenize, TakesTextOrMessages) {
  auto text =
      parse_tokenize_request(R"({"model":"M","prompt":"hi","add_special_tokens":false})", kLimits);
  ASSERT_TRUE(text);
  EXPECT_EQ(std::get<std::string>(text->input), "hi");
  EXPECT_FALSE(text->add_special_tokens);
  auto messages =
      parse_tokenize_request(R"({"messages":[{"role":"user","content":"hi"}]})", kLimits);
  ASSERT_TRUE(messages);
  EXPECT_TRUE(std::get<ChatPrompt>(messages->input).add_generation_prompt);
  EXPECT_FALSE(messages->add_special_tokens);
  EXPECT_EQ(parse_tokenize_request("{}", kLimits).error().param, "prompt");
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[1,-1]})", kLimits).error().param, "tokens[1]");
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":"a"})", kLimits).error().param, "tokens");
  EXPECT_EQ(parse_detokenize_request("{}", kLimits).error().param, "tokens");
  EXPECT_TRUE(parse_detokenize_request(R"({"tokens":[]})", kLimits));
}

}  // namespace
}  // namespace tandem::router
