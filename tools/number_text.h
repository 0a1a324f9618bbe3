#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace tandem {

// A measured amount with three significant figures and no exponent: 0.0123, 1.23, 12.3, 1234.
// "-" for what was not measured (NaN, infinity).
inline std::string three_figures(double value) {
  if (!std::isfinite(value)) return "-";
  if (value == 0) return "0";
  const auto magnitude = static_cast<int>(std::floor(std::log10(std::fabs(value))));
  // 9.996 has two figures before the point once it is rounded.
  const double unit = std::pow(10.0, magnitude - 2);
  const bool carries = std::fabs(value) / unit >= 999.5;
  return fmt::format("{:.{}f}", value, std::clamp(2 - magnitude - (carries ? 1 : 0), 0, 12));
}

}  // namespace tandem
