#pragma once

#include <string>
#include <string_view>

namespace tandem {

// Appends `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD, so that
// the result is valid JSON whatever comes in.
void append_json_string(std::string& out, std::string_view text);

// Appends a JSON number; infinities and NaN, which JSON cannot hold, become null.
void append_json_number(std::string& out, double value);

}  // namespace tandem
