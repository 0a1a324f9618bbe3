#pragma once

#include <string>

namespace tandem::engine {
class StepProfile;
}

namespace tandem::cli {

// Time, traffic and share of every stage since the model was loaded, the costliest first; a line
// for each.
[[nodiscard]] std::string profile_table(const engine::StepProfile& profile);

}  // namespace tandem::cli
