#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/exit.h"
#include "common/base/result.h"
#include "common/config/environment.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// What main() gives every command; outlives all of them.
struct CommandContext {
  const Clock& clock;
  const Environment& environment;
  // Set by the command that ran.
  int exit_code = kExitOk;
};

// Each adds one subcommand with its flags; the command runs inside app.parse().
void add_generate(CLI::App& app, CommandContext& context);
void add_tokenize(CLI::App& app, CommandContext& context);
void add_eval(CLI::App& app, CommandContext& context);
void add_up(CLI::App& app, CommandContext& context);
void add_down(CLI::App& app, CommandContext& context);
void add_status(CLI::App& app, CommandContext& context);
void add_chat(CLI::App& app, CommandContext& context);
void add_doctor(CLI::App& app, CommandContext& context);

// Runs `command` and turns its error into one line on stderr and an exit code (common/base/exit.h).
void run(CommandContext& context, std::string_view name, const std::function<Status()>& command);

// An error about the file or folder that an argument names: that it is not there or cannot be
// opened makes the argument wrong.
[[nodiscard]] Error about_argument(Error error, std::string argument);

// Files that commands read whole. kInvalidArgument with path and reason for those that cannot be
// opened; `limit` in bytes.
[[nodiscard]] Result<std::string> read_text_file(const std::string& path, size_t limit = 64u << 20);

}  // namespace tandem::cli
