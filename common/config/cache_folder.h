#pragma once

#include <string>

#include "common/config/environment.h"

namespace tandem {

// Where a user's programs keep what they could find out again: $XDG_CACHE_HOME/tandem, else
// ~/.cache/tandem. Empty where the environment names neither; relative paths count for nothing, as
// the XDG specification has it. Need not exist.
[[nodiscard]] std::string cache_folder(const Environment& environment);

}  // namespace tandem
