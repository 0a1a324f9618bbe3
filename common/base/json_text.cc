#include "common/base/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "common/base/utf8.h"

namespace tandem {

namespace {

// True for bytes that stand for themselves inside a JSON string: printable ASCII but quote,
// backslash.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> table{};
  for (size_t c = 0x20; c < 0x80; ++c) table[c] = c != '"' && c != '\\' && c != 0x7f;
  return table;
}();

void append_control(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      break;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto u = static_cast<unsigned char>(c);
  out += "\\u00";
  out += kHex[u >> 4];
  out += kHex[u & 15U];
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    size_t run = i;
    while (run < text.size() && kPlain[static_cast<unsigned char>(text[run])]) ++run;
    out.append(text, i, run - i);
    i = run;
    if (i == text.size()) return;
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      append_control(out, text[i++]);
      continue;
    }
    const size_t length = utf8_sequence_length(text.substr(i));
    if (length == 0) {
      out += "\xef\xbf\xbd";
      ++i;
    } else {
      out.append(text, i, length);
      i += length;
    }
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_json_integer(std::string& out, int64_t value) {
  std::array<char, 24> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), result.ptr);
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 40> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), result.ptr);
}

}  // namespace tandem
