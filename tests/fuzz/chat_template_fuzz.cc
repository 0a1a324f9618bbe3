// Any bytes as a chat template, with what follows a NUL as the messages and a second NUL the tools.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "common/text/chat_template.h"

namespace {

std::string_view next_part(std::string_view& rest) {
  const size_t end = rest.find('\0');
  const std::string_view part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::ManualClock clock;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view source = next_part(rest);
  const std::string messages(next_part(rest));
  const std::string tools(next_part(rest));
  const auto chat = tandem::text::ChatTemplate::from_config(
      R"({"bos_token":"<s>","eos_token":"</s>"})", source, clock);
  if (!chat) {
    TANDEM_CHECK(!chat.error().detail.empty(), "an error without a message");
    return 0;
  }
  for (const std::string& conversation :
       {messages, std::string(R"([{"role":"user","content":"hi"}])")}) {
    const auto text =
        (*chat)->render({.messages_json = conversation, .tools_json = tools, .kwargs_json = ""});
    if (text) TANDEM_CHECK(tandem::is_valid_utf8(*text), "rendered text is not UTF-8");
  }
  return 0;
}
