#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::router {

// Writers for the hot path: they append to a string and build no tree.

// `text` with JSON escapes, without quotes. Ill-formed UTF-8 becomes U+FFFD, so the output is
// always valid.
void append_json_escaped(std::string& out, std::string_view text);
// The same in quotes.
void append_json_string(std::string& out, std::string_view text);
void append_json_integer(std::string& out, int64_t value);
// Finite numbers only as they are; anything else as null.
void append_json_number(std::string& out, double value);
// A log-probability: minus infinity and other non-numbers are -9999.0, OpenAI's "very unlikely".
void append_json_logprob(std::string& out, float value);

}  // namespace tandem::router
