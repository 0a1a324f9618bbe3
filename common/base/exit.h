#pragma once

#include <string>
#include <string_view>

#include "common/base/error.h"

namespace tandem {

// Exit codes of every program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;  // a wrong argument, configuration or model

// Why `program` ends, in one line without its end.
[[nodiscard]] std::string exit_message(std::string_view program, const Error& error);
// Whatever will be the same the next time, a file that is no model as much as a wrong key, is
// kExitUsage: whoever supervises the program need not try again.
[[nodiscard]] int exit_code(const Error& error);

// Says the message on standard error and returns the code.
[[nodiscard]] int report_exit(std::string_view program, const Error& error);

}  // namespace tandem
