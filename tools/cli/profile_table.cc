#include "tools/cli/profile_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/engine/cuda/step_profile.h"
#include "tools/number_text.h"

namespace tandem::cli {

std::string profile_table(const engine::StepProfile& profile) {
  std::vector<engine::StepProfile::Stage> stages = profile.stages();
  std::ranges::sort(stages, [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  std::string out = fmt::format("{:<24} {:>9} {:>11} {:>10} {:>10} {:>8} {:>7}\n", "stage", "calls",
                                "us a call", "ms", "MB", "GB/s", "share");
  for (const auto& s : stages) {
    const double seconds = std::max(s.seconds, 1e-9);
    const double calls = static_cast<double>(std::max<uint64_t>(s.calls, 1));
    out += fmt::format("{:<24} {:>9} {:>11.1f} {:>10.2f} {:>10.1f} {:>8} {:>6.1f}%\n", s.name,
                       s.calls, s.seconds * 1e6 / calls, s.seconds * 1e3, s.bytes * 1e-6,
                       three_figures(s.bytes * 1e-9 / seconds),
                       100 * s.seconds / std::max(profile.seconds(), 1e-9));
  }
  return out;
}

}  // namespace tandem::cli
