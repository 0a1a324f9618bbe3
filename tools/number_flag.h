#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace tandem {

// Checks the number of a flag. CLI::Range lets "nan" pass, which is smaller than nothing and larger
// than nothing.
inline CLI::Validator between(double least, double most) {
  const std::string range = CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most);
  return {[least, most, range](std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
            return number && value >= least && value <= most
                       ? std::string()
                       : "'" + text + "' is no number from " + range;
          },
          "FLOAT:" + range, "BETWEEN"};
}

// Checks the whole number of a flag. Without it CLI takes "-1" for the largest one and "010" for 8.
inline CLI::Validator whole(uint64_t least, uint64_t most = std::numeric_limits<uint64_t>::max()) {
  const std::string range = most == std::numeric_limits<uint64_t>::max()
                                ? std::to_string(least) + " on"
                                : std::to_string(least) + " to " + std::to_string(most);
  return {[least, most, range](std::string& text) {
            uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [last, error] = std::from_chars(text.data(), end, value);
            const bool number =
                error == std::errc() && last == end && (text.size() == 1 || !text.starts_with('0'));
            return number && value >= least && value <= most
                       ? std::string()
                       : "'" + text + "' is no whole number from " + range;
          },
          "UINT:" + range, "WHOLE"};
}

}  // namespace tandem
