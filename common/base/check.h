#pragma once

#include <string_view>

namespace tandem {

// Prints the expression, message and place to stderr and aborts.
[[noreturn]] void check_failed(const char* expression, std::string_view message, const char* file,
                               int line);

}  // namespace tandem

// For invariants of this program, in every build type. Never for input, config or what a peer sent:
// those get an Error.
#define TANDEM_CHECK(condition, message)                                 \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::tandem::check_failed(#condition, (message), __FILE__, __LINE__); \
  } while (false)
