#include "common/obs/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "common/base/utf8.h"

namespace tandem {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    size_t length = 1;
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text.front();
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else if (byte < 0x80) {
      out += text.front();
    } else {
      length = utf8_sequence_length(text);
      if (length == 0) {
        out += "\xef\xbf\xbd";
        length = 1;
      } else {
        out += text.substr(0, length);
      }
    }
    text.remove_prefix(length);
  }
  out += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, error == std::errc{} ? end : buffer);
}

}  // namespace tandem
