#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem {

// Two lower-case hexadecimal digits for each byte, and back. kCorruptData for anything else.
[[nodiscard]] std::string to_hex(std::string_view bytes);
[[nodiscard]] Result<std::string> from_hex(std::string_view hex);

}  // namespace tandem
