#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace tandem {

// Whether listen_on() would succeed now, with its error if not. Binds and lets go: nobody can
// connect meanwhile. Blocks for as long as a name takes to resolve.
[[nodiscard]] Status can_listen(const std::string& host, uint16_t port);

}  // namespace tandem
