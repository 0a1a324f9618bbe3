#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
inline constexpr std::array<std::string_view, 4> kLogLevelNames{"debug", "info", "warning",
                                                                "error"};
[[nodiscard]] constexpr std::string_view to_string(LogLevel level) {
  return kLogLevelNames[static_cast<size_t>(level)];
}

}  // namespace tandem
