#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::cli {

// What a line typed into `tandem chat` is.
enum class ChatLine : uint8_t {
  kText,     // for the model
  kNothing,  // blank
  kHelp,     // /help, /?
  kClear,    // /clear, /reset, /new
  kQuit,     // /quit, /exit
  kUnknown,  // another word after a slash
  kTooMuch,  // a command with words after it
};

// Only a first word of letters is a command: paths (/etc/hosts) are text, and so is every line that
// begins with a space.
[[nodiscard]] ChatLine classify(std::string_view line);

inline constexpr std::string_view kChatHelp =
    "  /clear   forget the conversation and begin anew (also /reset, /new)\n"
    "  /quit    leave (also /exit, Ctrl-D)\n"
    "  /help    this\n"
    "Ctrl-C stops an answer. A line that begins with a space goes to the model as it is.\n";

}  // namespace tandem::cli
