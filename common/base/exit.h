#pragma once

#include <string>
#include <string_view>

#include "common/base/error.h"

namespace tandem {

// Exit codes of every program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;  // a wrong argument or configuration

// Why `program` ends, in one line without its end.
[[nodiscard]] std::string exit_message(std::string_view program, const Error& error);
[[nodiscard]] int exit_code(const Error& error);

// Says the message on standard error and returns the code.
[[nodiscard]] int report_exit(std::string_view program, const Error& error);

// The same for a server that cannot start. Whatever will be the same the next time, a file that is
// no model as much as a wrong key, is exit code 2: whoever supervises it need not try again.
[[nodiscard]] int report_start_failure(std::string_view program, const Error& error);

}  // namespace tandem
