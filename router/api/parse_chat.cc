#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <utility>

#include "router/api/parse_common.h"

namespace tandem::router {
namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 6> kRoles{"system",    "developer", "user",
                                                 "assistant", "tool",      "function"};

// A message's content as one string: the text parts of an array in their order, nothing between
// them.
Result<std::string> read_content(const json::value& content, const std::string& path) {
  if (content.is_string()) return std::string(std::string_view(content.get_string()));
  if (!content.is_array()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} must be a string or an array of parts, not {}", path,
                            json_kind_name(content)),
                path);
  }
  std::string text;
  const json::array& parts = content.get_array();
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    if (parts[i].is_string()) {
      text += std::string_view(parts[i].get_string());
      continue;
    }
    if (!parts[i].is_object()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} must be an object, not {}", part_path, json_kind_name(parts[i])),
                  part_path);
    }
    ObjectReader part(parts[i].get_object(), part_path);
    std::string type;
    std::string piece;
    if (!part.read("type", type)) part.fault("type", part.path_of("type") + " is missing");
    const bool refusal = type == "refusal";
    if (part.ok() && type != "text" && !refusal) {
      part.fault("type",
                 fmt::format("content of type \"{}\" is not supported: this model reads text only",
                             type.substr(0, 40)),
                 ErrorCode::kUnsupported);
    }
    const std::string_view key = refusal ? "refusal" : "text";
    if (part.ok() && !part.read(key, piece)) part.fault(key, part.path_of(key) + " is missing");
    TANDEM_TRY(part.status());
    text += piece;
  }
  return text;
}

// Arguments stay as they were sent: common/text knows in which form the template reads them.
Status check_tool_calls(const json::array& calls, const std::string& path) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}]", path, i);
    if (!calls[i].is_object()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} must be an object, not {}", call_path, json_kind_name(calls[i])),
                  call_path);
    }
    ObjectReader reader(calls[i].get_object(), call_path);
    std::string type = "function";
    reader.read("type", type);
    if (type != "function") {
      reader.fault("type", fmt::format("{} must be \"function\"", reader.path_of("type")));
    }
    const json::object* function = reader.read_object("function");
    if (reader.ok() && function == nullptr) {
      reader.fault("function", reader.path_of("function") + " is missing");
    }
    TANDEM_TRY(reader.status());
    ObjectReader inner(*function, reader.path_of("function"));
    std::string name;
    if (!inner.read("name", name)) inner.fault("name", inner.path_of("name") + " is missing");
    TANDEM_TRY(inner.status());
    const json::value* arguments = inner.find("arguments");
    if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
      return fail(ErrorCode::kInvalidArgument,
                  inner.path_of("arguments") + " must be a string of JSON",
                  inner.path_of("arguments"));
    }
  }
  return {};
}

Result<json::object> read_message(const json::value& value, const std::string& path) {
  if (!value.is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} must be an object, not {}", path, json_kind_name(value)), path);
  }
  const json::object& source = value.get_object();
  ObjectReader reader(source, path);
  std::string role;
  if (!reader.read("role", role)) reader.fault("role", reader.path_of("role") + " is missing");
  TANDEM_TRY(reader.status());
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is \"{}\"; it must be one of system, developer, user, assistant, "
                            "tool, function",
                            reader.path_of("role"), role.substr(0, 40)),
                reader.path_of("role"));
  }
  json::object out;
  // The newer name of the same thing; few templates know it.
  out["role"] = role == "developer" ? "system" : role;
  const json::array* calls = reader.read_array("tool_calls");
  const bool has_calls =
      (calls != nullptr && !calls->empty()) || reader.find("function_call") != nullptr;
  TANDEM_TRY(reader.status());
  if (const json::value* content = reader.find("content")) {
    TANDEM_ASSIGN(out["content"], read_content(*content, reader.path_of("content")));
  } else if (role == "assistant" && has_calls) {
    out["content"] = "";  // templates print what they find: never a literal None
  } else {
    return fail(ErrorCode::kInvalidArgument, reader.path_of("content") + " is missing",
                reader.path_of("content"));
  }
  if (calls != nullptr) {
    TANDEM_TRY(check_tool_calls(*calls, reader.path_of("tool_calls")));
    out["tool_calls"] = *calls;
  }
  for (std::string_view key : {"name", "tool_call_id", "reasoning_content"}) {
    std::string text;
    if (reader.read(key, text)) out[key] = text;
  }
  TANDEM_TRY(reader.status());
  for (const json::key_value_pair& field : source) {  // templates may know further fields
    if (!field.value().is_null() && !out.contains(field.key())) out[field.key()] = field.value();
  }
  return out;
}

Status check_tools(const json::array& tools) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} must be an object, not {}", path, json_kind_name(tools[i])),
                  path);
    }
    ObjectReader tool(tools[i].get_object(), path);
    std::string type;
    if (!tool.read("type", type)) tool.fault("type", tool.path_of("type") + " is missing");
    if (tool.ok() && type != "function") {
      tool.fault("type",
                 fmt::format("tools of type \"{}\" are not supported: use \"function\"",
                             type.substr(0, 40)),
                 ErrorCode::kUnsupported);
    }
    const json::object* function = tool.read_object("function");
    if (tool.ok() && function == nullptr) {
      tool.fault("function", tool.path_of("function") + " is missing");
    }
    TANDEM_TRY(tool.status());
    ObjectReader inner(*function, tool.path_of("function"));
    std::string text;
    if (!inner.read("name", text)) inner.fault("name", inner.path_of("name") + " is missing");
    inner.read("description", text);
    inner.read_object("parameters");
    TANDEM_TRY(inner.status());
  }
  return {};
}

// Tools reach the template with tool_choice absent or "auto". Forcing a call needs constrained
// decoding, so "required" and named functions are refused rather than hoped for.
void read_tools(ObjectReader& reader, ChatPrompt& out) {
  const json::array* tools = reader.read_array("tools");
  bool use = tools != nullptr && !tools->empty();
  if (const json::value* choice = reader.find("tool_choice")) {
    const std::string_view name =
        choice->is_string() ? std::string_view(choice->get_string()) : std::string_view();
    if (name == "none") {
      use = false;
    } else if (name == "required" || choice->is_object()) {
      reader.fault("tool_choice",
                   "tool_choice can be \"none\" or \"auto\": a forced call needs constrained "
                   "decoding, which is not implemented",
                   ErrorCode::kUnsupported);
    } else if (name != "auto") {
      reader.fault("tool_choice",
                   "tool_choice must be \"none\", \"auto\", \"required\" or an object");
    }
  }
  if (tools == nullptr) return;
  if (Status status = check_tools(*tools); !status) return reader.fault(status.error());
  if (use) out.tools = json::serialize(*tools);
}

}  // namespace

void read_chat_prompt(ObjectReader& reader, ChatPrompt& out) {
  const json::array* messages = reader.read_array("messages");
  if (!reader.ok()) return;
  if (messages == nullptr) {
    return reader.fault("messages", "messages is missing: send an array with at least one message");
  }
  if (messages->empty()) {
    return reader.fault("messages", "messages is empty: send at least one message");
  }
  json::array normalised;
  normalised.reserve(messages->size());
  for (size_t i = 0; i < messages->size(); ++i) {
    Result<json::object> message = read_message((*messages)[i], fmt::format("messages[{}]", i));
    if (!message) return reader.fault(std::move(message).error());
    normalised.push_back(std::move(*message));
  }
  out.messages = json::serialize(normalised);
  read_tools(reader, out);
  if (const json::object* kwargs = reader.read_object("chat_template_kwargs")) {
    out.template_kwargs = json::serialize(*kwargs);
  }
  reader.read("add_generation_prompt", out.add_generation_prompt);
  if (reader.read("continue_final_message", out.continue_final_message) &&
      out.continue_final_message) {
    if (reader.find("add_generation_prompt") != nullptr && out.add_generation_prompt) {
      reader.fault("continue_final_message",
                   "continue_final_message and add_generation_prompt exclude each other");
    }
    out.add_generation_prompt = false;
  }
  reader.read("add_special_tokens", out.add_special_tokens);
  reader.refuse("chat_template", "the template is the model's own");
  reader.refuse("documents", "pass them in chat_template_kwargs if the template reads them");
}

Result<ChatRequest> parse_chat_request(std::string_view body, const ApiLimits& limits) {
  TANDEM_ASSIGN(const json::object object, parse_json_object(body));
  ObjectReader reader(object, "");
  ChatRequest request;
  read_generation_fields(reader, limits, request.common);
  read_chat_prompt(reader, request.prompt);
  read_max_tokens(reader, "max_tokens", 1, limits, request.common);
  read_max_tokens(reader, "max_completion_tokens", 1, limits, request.common);
  bool logprobs = false;
  int64_t top = 0;
  reader.read("logprobs", logprobs);
  if (reader.read_integer("top_logprobs", 0, limits.max_logprobs, top) && !logprobs) {
    reader.fault("top_logprobs", "top_logprobs needs \"logprobs\": true");
  }
  if (logprobs) request.common.logprobs = static_cast<int32_t>(top);
  reader.refuse("functions", "use tools");
  const json::value* call = reader.find("function_call");
  if (call != nullptr && *call != "none" && *call != "auto")
    reader.refuse("function_call", "forcing a call needs constrained decoding");
  reader.refuse("audio", "this model answers in text only");
  reader.refuse("web_search_options", "there is no web search");
  reader.refuse("echo", "use /v1/completions");
  if (const json::array* modalities = reader.read_array("modalities")) {
    for (const json::value& m : *modalities) {
      if (!m.is_string() || m.get_string() != "text") {
        reader.fault("modalities", "modalities can hold \"text\" only", ErrorCode::kUnsupported);
      }
    }
  }
  TANDEM_TRY(reader.status());
  return request;
}

}  // namespace tandem::router
