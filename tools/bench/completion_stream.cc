#include "tools/bench/completion_stream.h"

#include <algorithm>
#include <boost/json.hpp>

namespace tandem::bench {
namespace {

namespace json = boost::json;

constexpr size_t kMaxLine = 1u << 20;  // a server that never ends a line must not fill our memory

uint32_t count(const json::object& usage, std::string_view key) {
  const json::value* value = usage.if_contains(key);
  if (!value || !value->is_int64()) return 0;
  return static_cast<uint32_t>(std::clamp<int64_t>(value->get_int64(), 0, UINT32_MAX));
}

// The piece of text an event brings for a choice; empty when it brings none.
std::string_view text_of(const json::value& choice) {
  if (!choice.is_object()) return {};
  const json::value* text = choice.get_object().if_contains("text");
  if (!text) {
    const json::value* delta = choice.get_object().if_contains("delta");
    if (delta && delta->is_object()) text = delta->get_object().if_contains("content");
  }
  return text && text->is_string() ? std::string_view(text->get_string()) : std::string_view();
}

}  // namespace

size_t CompletionStream::feed(std::string_view bytes) {
  size_t with_text = 0;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    std::string_view line = line_;
    if (line.starts_with("data:")) {
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      with_text += event(line) ? 1 : 0;
    }
    line_.clear();
  }
  if (line_.size() > kMaxLine) {
    error_ = "an event longer than 1 MiB";
    line_.clear();
  }
  return with_text;
}

bool CompletionStream::event(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  boost::system::error_code failed;
  const json::value value = json::parse(data, failed);
  if (failed || !value.is_object()) {
    error_ = "an event that is not JSON";
    return false;
  }
  const json::object& object = value.get_object();
  if (const json::value* error = object.if_contains("error"); error && error->is_object()) {
    const json::value* message = error->get_object().if_contains("message");
    error_ = message && message->is_string() ? std::string(message->get_string()) : "unnamed error";
    return false;
  }
  if (const json::value* usage = object.if_contains("usage"); usage && usage->is_object()) {
    prompt_tokens_ = count(usage->get_object(), "prompt_tokens");
    output_tokens_ = count(usage->get_object(), "completion_tokens");
    const json::value* details = usage->get_object().if_contains("prompt_tokens_details");
    if (details && details->is_object() && details->get_object().contains("cached_tokens"))
      cached_tokens_ = count(details->get_object(), "cached_tokens");
  }
  const json::value* choices = object.if_contains("choices");
  if (!choices || !choices->is_array()) return false;
  bool with_text = false;
  for (const json::value& choice : choices->get_array()) {
    const std::string_view text = text_of(choice);
    if (text.empty()) continue;
    with_text = true;
    if (on_text_) on_text_(text);
  }
  return with_text;
}

}  // namespace tandem::bench
