#include "tools/cli/chat_command.h"

#include <algorithm>
#include <utility>

namespace tandem::cli {
namespace {

constexpr std::pair<std::string_view, ChatLine> kCommands[] = {
    {"/help", ChatLine::kHelp},   {"/?", ChatLine::kHelp},    {"/clear", ChatLine::kClear},
    {"/reset", ChatLine::kClear}, {"/new", ChatLine::kClear}, {"/quit", ChatLine::kQuit},
    {"/exit", ChatLine::kQuit}};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

ChatLine classify(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r\n";
  if (line.find_first_not_of(kBlank) == std::string_view::npos) return ChatLine::kNothing;
  const std::string_view word = line.substr(0, std::min(line.find_first_of(kBlank), line.size()));
  const bool more = line.find_first_not_of(kBlank, word.size()) != std::string_view::npos;
  for (const auto& [name, kind] : kCommands) {
    if (name == word) return more ? ChatLine::kTooMuch : kind;
  }
  const bool command =
      word.size() > 1 && word[0] == '/' && std::all_of(word.begin() + 1, word.end(), is_letter);
  return command ? ChatLine::kUnknown : ChatLine::kText;
}

}  // namespace tandem::cli
