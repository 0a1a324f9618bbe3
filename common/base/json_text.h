#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// JSON written straight into a string, with no tree in between. What comes out is valid whatever
// comes in.

// `text` with JSON escapes, without quotes. Ill-formed UTF-8 becomes U+FFFD.
void append_json_escaped(std::string& out, std::string_view text);
// The same in quotes.
void append_json_string(std::string& out, std::string_view text);
void append_json_integer(std::string& out, int64_t value);
// Infinities and NaN, which JSON cannot hold, become null.
void append_json_number(std::string& out, double value);

}  // namespace tandem
