#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/text/load.h"

namespace tandem::cli {

// A conversation file: {"messages": [...], "tools": [...]?} or the bare array of messages, in the
// OpenAI API's JSON. `source` names the file (and line) in errors.
[[nodiscard]] Result<text::ChatInput> parse_chat(std::string_view json, std::string_view source);

struct RenderedPrompt {
  std::string rendered;  // chats only
  std::vector<TokenId> ids;
};
// Template and tokenizer as the router applies them to /v1/chat/completions. kUnsupported when the
// model has no chat template.
[[nodiscard]] Result<RenderedPrompt> render_chat(const text::TextModel& model,
                                                 const text::ChatInput& chat);

// Numbers apart by spaces, line ends or commas. Errors name the position and what stands there;
// `source` is the flag or file.
[[nodiscard]] Result<std::vector<TokenId>> parse_ids(std::string_view text,
                                                     std::string_view source);

// Refuses ids outside 0 .. vocab-1, naming the first and its place.
[[nodiscard]] Status check_ids(const std::vector<TokenId>& ids, size_t vocab,
                               std::string_view source);

}  // namespace tandem::cli
