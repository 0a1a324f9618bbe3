// Expected texts are from transformers' renderer through Python (generate_templates.py).

#include "common/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "tests/unit/text/text_fixtures.h"

namespace tandem::text {
namespace {

namespace json = boost::json;
using testing::HasSubstr;
using testing::Not;

const ManualClock kClock;

std::unique_ptr<ChatTemplate> compile(const std::string& source, json::object config = {}) {
  config["chat_template"] = source;
  return unwrap(ChatTemplate::from_config(json::serialize(config), std::nullopt, kClock));
}

std::string render(const ChatTemplate& chat, const std::string& messages,
                   const std::string& tools = "") {
  return unwrap(chat.render({.messages_json = messages, .tools_json = tools, .kwargs_json = ""}));
}

const json::value& golden() {
  static const json::value root = read_json(data_path("template_golden.json"));
  return root;
}

void expect_golden(const json::value& expected, const ChatInput& input) {
  SCOPED_TRACE(text_of(expected.at("template")));
  json::object config = golden().at("special_tokens").as_object();
  config["chat_template"] = expected.at("template");
  const auto chat = ChatTemplate::from_config(json::serialize(config), std::nullopt, kClock);
  if (!chat) {
    EXPECT_TRUE(expected.at("text").is_null()) << chat.error().to_string();
    return;
  }
  const Result<std::string> text = (*chat)->render(input);
  if (expected.at("text").is_null()) {
    ASSERT_FALSE(text) << *text;
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(text.error().detail.empty());
  } else {
    ASSERT_TRUE(text) << text.error().to_string();
    EXPECT_EQ(*text, text_of(expected.at("text")));
  }
}

TEST(ChatTemplateGolden, ExpressionsRenderAsInTheReference) {
  const auto& snippets = golden().at("snippets").as_array();
  ASSERT_GT(snippets.size(), 60u);
  for (const json::value& snippet : snippets) {
    expect_golden(snippet, {.messages_json = json::serialize(golden().at("messages")),
                            .tools_json = "",
                            .kwargs_json = json::serialize(golden().at("context"))});
  }
}

TEST(ChatTemplateGolden, ChatsRenderAsInTheReference) {
  for (const json::value& chat : golden().at("chats").as_array()) {
    const json::value& tools = chat.at("tools");
    expect_golden(chat, {.messages_json = json::serialize(chat.at("messages")),
                         .tools_json = tools.is_null() ? "" : json::serialize(tools),
                         .kwargs_json = json::serialize(chat.at("kwargs")),
                         .add_generation_prompt = chat.at("add_generation_prompt").as_bool()});
  }
}

TEST(ChatTemplateGolden, MessagesOfTheTemplateArePassedOnWordForWord) {
  size_t seen = 0;
  for (const json::value& expected : golden().at("chats").as_array()) {
    if (!expected.at("text").is_null()) continue;
    ++seen;
    const auto chat = compile(text_of(expected.at("template")));
    const auto text = chat->render({.messages_json = json::serialize(expected.at("messages")),
                                    .tools_json = "",
                                    .kwargs_json = ""});
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().detail, text_of(expected.at("error")));
    EXPECT_EQ(text.error().param, "messages");
  }
  EXPECT_GT(seen, 3u);
}

// The clock reads 1700000000.25 seconds after the epoch, as in the generator.
TEST(Strftime, WritesLocalTimeAsPythonDoes) {
  ManualClock clock;
  clock.advance(std::chrono::milliseconds(250));
  const char* old_zone = std::getenv("TZ");
  const std::optional<std::string> saved =
      old_zone ? std::optional<std::string>(old_zone) : std::nullopt;
  for (const json::value& expected : golden().at("strftime").as_array()) {
    setenv("TZ", text_of(expected.at("zone")).c_str(), 1);
    tzset();
    json::object config{{"chat_template", "{{ strftime_now(messages[0].content) }}"}};
    const auto chat =
        unwrap(ChatTemplate::from_config(json::serialize(config), std::nullopt, clock));
    const json::array messages{{{"role", "user"}, {"content", expected.at("format")}}};
    EXPECT_EQ(render(*chat, json::serialize(messages)), text_of(expected.at("text")))
        << text_of(expected.at("format"));
  }
  if (saved) {
    setenv("TZ", saved->c_str(), 1);
  } else {
    unsetenv("TZ");
  }
  tzset();
  const auto defined =
      compile("{% if strftime_now is defined %}yes{% endif %}{{ messages[0].content }}");
  EXPECT_EQ(render(*defined, R"([{"role":"user","content":"x"}])"), "yesx");
}

constexpr const char* kConcat =
    "{% for m in messages %}[{{ m.role + ':' + m.content }}]"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}";

TEST(ToolCalls, ContentMayBeAbsentNullOrEmpty) {
  const auto chat = compile(kConcat);
  const auto history = [](const std::string& content) {
    return R"([{"role":"user","content":"q"},{"role":"assistant",)" + content +
           R"("tool_calls":[{"id":"c1","type":"function","function":)"
           R"({"name":"add","arguments":"{\"a\": 2, \"b\":3}"}}]},)"
           R"({"role":"tool","tool_call_id":"c1","content":"5"}])";
  };
  const std::string expected = R"([user:q][assistant:]add{"a": 2, "b": 3}[tool:5])";
  for (const char* content : {"", R"("content":null,)", R"("content":"",)"}) {
    const std::string text = render(*chat, history(content));
    EXPECT_EQ(text, expected);
    EXPECT_THAT(text, Not(HasSubstr("None")));
    EXPECT_THAT(text, Not(HasSubstr("null")));
  }
}

TEST(ToolCalls, ArgumentsThatAreNoJsonObjectStayText) {
  const auto chat = compile(kConcat);
  const auto with = [&](const std::string& arguments) {
    return render(*chat,
                  R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" +
                      arguments + "}}]}]");
  };
  EXPECT_EQ(with(R"("[1, 2]")"), R"([assistant:]f"[1, 2]")");
  EXPECT_EQ(with(R"("{broken")"), R"([assistant:]f"{broken")");
  EXPECT_EQ(with(R"("")"), "[assistant:]f{}");
  EXPECT_EQ(with(R"({"z":1,"a":2})"), R"([assistant:]f{"z": 1, "a": 2})");
}

TEST(ToolCalls, TemplateThatWantsNoneForContentGetsIt) {
  const auto chat = compile(
      "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
      "{% for c in m.tool_calls %}CALL {{ c.function.name }}{% endfor %}"
      "{% elif m.content is not none %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}");
  const std::string calls = R"("tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}])";
  for (const char* content : {"", R"("content":null,)", R"("content":"",)"}) {
    EXPECT_EQ(render(*chat, R"([{"role":"assistant",)" + std::string(content) + calls), "CALL f");
  }
  EXPECT_EQ(render(*chat, R"([{"role":"assistant","content":"x"}])"), "assistant:x;");
}

TEST(ToolCalls, TemplateThatJoinsArgumentsToTextGetsText) {
  const auto chat = compile(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}");
  const auto with = [&](const std::string& arguments) {
    return render(*chat, R"([{"role":"assistant","tool_calls":[{"function":{"name":"f ",)"
                         R"("arguments":)" +
                             arguments + "}}]}]");
  };
  EXPECT_EQ(with(R"("{\"b\": 1,  \"a\": 2}")"), R"(f {"b": 1,  "a": 2})");
  EXPECT_EQ(with(R"({"b":1,"a":2})"), R"(f {"b":1,"a":2})");
}

TEST(Messages, NullFieldsAreAsIfAbsent) {
  const auto chat = compile(
      "{% for m in messages %}{{ m.name is defined }}{{ m.tool_calls is defined }}"
      "{{ m.name }}{{ m.content }}{% endfor %}");
  EXPECT_EQ(render(*chat, R"([{"role":"assistant","content":"x","tool_calls":null,"name":null}])"),
            "FalseFalsex");
}

TEST(Messages, ReasoningIsReadableUnderItsCommonNames) {
  const auto chat = compile("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}");
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const std::string message =
        R"([{"role":"assistant","content":"",")" + std::string(name) + R"(":"why"}])";
    EXPECT_EQ(render(*chat, message), "why|why");
  }
}

TEST(ContentParts, TextPartsAreJoinedInOrder) {
  const auto chat = compile(kConcat);
  EXPECT_EQ(render(*chat, R"([{"role":"user","content":[{"type":"text","text":"first half, "},
                              {"type":"text","text":"second half"}]}])"),
            "[user:first half, second half]");
  EXPECT_EQ(render(*chat, R"([{"role":"user","content":[]}])"), "[user:]");
}

TEST(ContentParts, TemplateThatReadsPartsGetsThem) {
  const auto both = compile(
      "{% for m in messages %}{% if m.content is string %}S:{{ m.content }}{% else %}"
      "{% for p in m.content %}{% if p.type == 'text' %}<{{ p.text }}>{% endif %}{% endfor %}"
      "{% endif %}{% endfor %}");
  const std::string parts =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])";
  EXPECT_EQ(render(*both, parts), "<a><b>");
  EXPECT_EQ(render(*both, R"([{"role":"user","content":"c"}])"), "S:c");
  const auto only = compile(
      "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}<{{ p.text }}>"
      "{% endif %}{% endfor %}{% endfor %}");
  EXPECT_EQ(render(*only, parts), "<a><b>");
  EXPECT_EQ(render(*only, R"([{"role":"user","content":"c"}])"), "<c>");
}

TEST(ContentParts, OtherKindsAreRefusedByName) {
  const auto chat = compile(kConcat);
  for (const auto& [parts, place] : std::vector<std::pair<std::string, std::string>>{
           {R"([{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}])",
            "messages[0].content[1] has type \"image_url\""},
           {R"([{"type":"text"}])", "messages[0].content[0].text"},
           {R"(["plain"])", "messages[0].content[0]"},
           {R"(5)", "messages[0].content"}}) {
    const auto text = chat->render({.messages_json = R"([{"role":"user","content":)" + parts + "}]",
                                    .tools_json = "",
                                    .kwargs_json = ""});
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(text.error().detail, HasSubstr(place));
  }
}

constexpr const char* kNamed = R"({"chat_template":[{"name":"tool_use","template":"T"},
                                                    {"name":"default","template":"D"}]})";
constexpr const char* kUser = R"([{"role":"user","content":"hi"}])";
constexpr const char* kTools = R"([{"type":"function","function":{"name":"f"}}])";

// Checked by hand with jinja2 3.1.6, trim_blocks and lstrip_blocks on.
TEST(WhiteSpace, LineEndsAndRawTextAreAsInJinja2) {
  const std::string messages = R"([{"role":"user","content":"x"}])";
  EXPECT_EQ(render(*compile("a\r\n{% if 1 %}\r\nb\r\n  {% endif %}\r\nc\r\n"), messages),
            "a\nb\nc");
  EXPECT_EQ(render(*compile("{% raw %}\n {{x}} \n{% endraw %}\nz"), messages), "\n {{x}} \nz");
  EXPECT_EQ(render(*compile("{# c #}\n a {%+ if 1 %} b{% endif +%}\n"), messages), " a  b");
}

TEST(NamedTemplates, ToolUseIsPickedWithToolsAndDefaultWithout) {
  const auto chat = unwrap(ChatTemplate::from_config(kNamed, std::nullopt, kClock));
  EXPECT_EQ(render(*chat, kUser, kTools), "T");
  EXPECT_EQ(render(*chat, kUser), "D");
  EXPECT_EQ(render(*chat, kUser, "[]"), "D");
  EXPECT_EQ(render(*chat, kUser, "null"), "D");
}

TEST(NamedTemplates, FileWinsOverTheConfiguration) {
  const auto chat = unwrap(ChatTemplate::from_config(kNamed, "J\n", kClock));
  EXPECT_EQ(render(*chat, kUser, kTools), "J");
  EXPECT_EQ(render(*chat, kUser), "J");
}

TEST(NamedTemplates, WithoutADefaultTheNamesAreListed) {
  const auto chat = unwrap(ChatTemplate::from_config(
      R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"rag","template":"R"}]})",
      std::nullopt, kClock));
  EXPECT_EQ(render(*chat, kUser, kTools), "T");
  const auto text = chat->render({.messages_json = kUser, .tools_json = "", .kwargs_json = ""});
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().detail, HasSubstr("tool_use, rag"));
}

TEST(NoTemplate, IsReportedApartFromABrokenOne) {
  for (const char* config : {"", "{}", R"({"chat_template":null})", R"({"chat_template":[]})"}) {
    const auto chat = ChatTemplate::from_config(config, std::nullopt, kClock);
    ASSERT_FALSE(chat);
    EXPECT_EQ(chat.error().code, ErrorCode::kNotFound);
  }
  for (const char* config : {R"({"chat_template":"{% for x in"})", R"({"chat_template":"{{ x"})",
                             R"({"chat_template":"{% nosuchtag %}"})", R"({"chat_template":5})",
                             R"({"chat_template":[{"name":"x"}]})", "[", "5"}) {
    const auto chat = ChatTemplate::from_config(config, std::nullopt, kClock);
    ASSERT_FALSE(chat) << config;
    EXPECT_EQ(chat.error().code, ErrorCode::kCorruptData);
  }
}

TEST(BadInput, IsAnErrorNamingTheField) {
  const auto chat = compile(kConcat);
  const std::string deep = R"([{"role":"user","content":"x","y":)" + std::string(20000, '[') + "0" +
                           std::string(20000, ']') + "}]";
  for (const std::string& messages :
       {std::string(""), std::string("{"), std::string("[]"), std::string("{}"), std::string("[5]"),
        std::string("null"), std::string(R"([{"role":"user","content":"\ud83d"}])"), deep,
        std::string("[{\"role\":\"user\",\"content\":\"\xff\"}]")}) {
    const auto text =
        chat->render({.messages_json = messages, .tools_json = "", .kwargs_json = ""});
    ASSERT_FALSE(text) << messages.substr(0, 60);
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(text.error().param, "messages");
    EXPECT_THAT(text.error().detail, HasSubstr("messages"));
  }
  const auto tools = chat->render({.messages_json = kUser, .tools_json = "5", .kwargs_json = ""});
  ASSERT_FALSE(tools);
  EXPECT_EQ(tools.error().param, "tools");
  const auto kwargs = chat->render({.messages_json = kUser, .tools_json = "", .kwargs_json = "[]"});
  ASSERT_FALSE(kwargs);
  EXPECT_EQ(kwargs.error().param, "chat_template_kwargs");
}

TEST(BadInput, LongChainsCompileOrAreRefused) {
  const auto repeat = [](const std::string& unit, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += unit;
    return out;
  };
  for (const std::string unit : {"not ", "-", "1+", "x."}) {
    const std::string tail = unit == "x." ? "x }}" : "1 }}";
    EXPECT_NE(compile("{{ " + repeat(unit, 9000) + tail), nullptr) << unit;
    const json::object config{{"chat_template", "{{ " + repeat(unit, 200000) + tail}};
    const auto chat = ChatTemplate::from_config(json::serialize(config), std::nullopt, kClock);
    ASSERT_FALSE(chat) << unit;
    EXPECT_EQ(chat.error().code, ErrorCode::kCorruptData);
  }
  for (const std::string& source :
       {repeat("(", 200000), "{{ " + repeat("(", 9000), repeat("{% if 1 %}", 90000),
        "{% if 1 %}" + repeat("{% elif 1 %}", 50000), "{{ " + repeat("[", 9000)}) {
    const json::object config{{"chat_template", source}};
    const auto chat = ChatTemplate::from_config(json::serialize(config), std::nullopt, kClock);
    // Plain text stays text; everything else must have been refused.
    if (chat) {
      EXPECT_EQ(render(**chat, R"([{"role":"user","content":"x"}])"), source);
    }
  }
}

TEST(BadInput, TemplateThatNeverEndsIsStopped) {
  const auto chat = compile(
      "{% if messages[0].content == 'loop' %}{% for a in range(90000) %}{% for b in range(90000) %}"
      "{% set x = a + b %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}");
  EXPECT_EQ(render(*chat, kUser), "hi");
  const auto text = chat->render({.messages_json = R"([{"role":"user","content":"loop"}])",
                                  .tools_json = "",
                                  .kwargs_json = ""});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
}

TEST(BadInput, EndlessMacroRecursionIsStopped) {
  const auto chat = compile(
      "{% macro r(n) %}{{ r(n + 1) }}{% endmacro %}"
      "{% if messages[0].content == 'loop' %}{{ r(0) }}{% endif %}");
  const auto text = chat->render({.messages_json = R"([{"role":"user","content":"loop"}])",
                                  .tools_json = "",
                                  .kwargs_json = ""});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
}

// Values are compared, hashed and dropped by recursion; their depth is bounded by nothing but fuel.
TEST(BadInput, ValuesNestedByATemplateDoNotExhaustTheStack) {
  const std::string begin = "{% set ns = namespace(x=[], y=[]) %}{% for i in range(100000) %}";
  for (const std::string& source :
       {begin + "{% for j in range(5) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
        begin + "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        begin + "{% set ns.x = [ns.x] %}{% endfor %}{{ {ns.x: 1} }}",
        begin + "{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x|tojson }}"}) {
    const auto chat = compile(source);
    (void)chat->render({.messages_json = kUser, .tools_json = "", .kwargs_json = ""});
  }
  SUCCEED() << "still alive";
}

TEST(BadInput, AWidthThatNoLineHasIsRefused) {
  for (const char* source :
       {"{{ '{:>10000000000}'.format(3) }}", "{{ '{:.9999999999f}'.format(3.5) }}",
        "{{ '{0:99999999999999999999999d}'.format(3) }}"}) {
    const auto chat = compile(source);
    const auto text = chat->render({.messages_json = kUser, .tools_json = "", .kwargs_json = ""});
    ASSERT_FALSE(text) << source;
    EXPECT_THAT(text.error().detail, HasSubstr("width"));
  }
  EXPECT_EQ(render(*compile("{{ '{{20260}} {0:>4} {1}'.format(3, 20260) }}"), kUser),
            "{20260}    3 20260");
}

TEST(Kwargs, CannotReplaceTheConversation) {
  const auto chat =
      compile("{{ messages[0].content }}{{ tools }}{{ bos_token }}{{ x }}", {{"bos_token", "<s>"}});
  const auto text = chat->render({.messages_json = kUser,
                                  .tools_json = "",
                                  .kwargs_json = R"({"messages":[],"tools":[1],"x":2})"});
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "hiNone<s>2");
}

TEST(ModelTemplate, Chat6mWritesItsDefaultSystemMessage) {
  const std::string folder = std::string(TANDEM_MODELS) + "/chat-6m/";
  const auto chat = unwrap(
      ChatTemplate::from_config(read_file(folder + "tokenizer_config.json"), std::nullopt, kClock));
  EXPECT_EQ(render(*chat, kUser),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace tandem::text
