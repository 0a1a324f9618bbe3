#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
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

}  // namespace tandem
