#pragma once

#include <cstddef>
#include <string_view>

namespace tandem {

// Length in bytes of the well-formed UTF-8 sequence at the start of `text` (1..4), or 0 when it is
// malformed, overlong, a surrogate, above U+10FFFF, cut short, or when `text` is empty.
[[nodiscard]] size_t utf8_sequence_length(std::string_view text);

[[nodiscard]] bool is_valid_utf8(std::string_view text);

}  // namespace tandem
