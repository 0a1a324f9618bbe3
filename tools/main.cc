#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>

#include "common/base/clock.h"
#include "common/base/process_limits.h"
#include "common/config/environment.h"
#include "tools/bench/bench_command.h"
#include "tools/cli/command.h"
#include "tools/cli/usage.h"
#include "tools/version.h"

namespace {

int run(int argc, char** argv) {
  const tandem::SteadyClock clock;
  const tandem::Environment environment = tandem::process_environment();
  tandem::cli::CommandContext context{.clock = clock, .environment = environment};

  CLI::App app("Tandem serves large language models with prefill and decode as separate processes.",
               "tandem");
  app.set_version_flag("--version", std::string("tandem ") + TANDEM_VERSION);
  app.require_subcommand(1);
  // --help shows them as =VALUE. Where a value stands for "none given", its flag says in words what
  // happens then, and hides it with default_str("").
  app.option_defaults()->always_capture_default();
  tandem::cli::add_up(app, context);
  tandem::cli::add_down(app, context);
  tandem::cli::add_status(app, context);
  tandem::cli::add_chat(app, context);
  tandem::cli::add_doctor(app, context);
  tandem::cli::add_generate(app, context);
  tandem::cli::add_tokenize(app, context);
  tandem::cli::add_eval(app, context);
  tandem::bench::add_bench_command(app, environment);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {  // a command that has said what went wrong
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return tandem::cli::report_usage(app, error);
  }
  return context.exit_code;
}

// Whether standard output could not take everything that was printed. A reader that left is no
// failure of ours: `| head`.
bool output_lost() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return false;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) < 0 || (out.revents & (POLLERR | POLLHUP)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  // UCX has taken SIGHUP for its own debugging. The end of our terminal ends us, as it ends any
  // program; one that was started without a terminal (nohup, a service) goes on.
  std::signal(SIGHUP, tandem::has_terminal() ? SIG_DFL : SIG_IGN);
  try {
    const int code = run(argc, argv);
    if (!output_lost()) return code;
    std::fprintf(stderr, "tandem: cannot write the whole output\n");
    return code == tandem::kExitOk ? tandem::kExitFailure : code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem: %s\n", error.what());
    return tandem::kExitFailure;
  }
}
