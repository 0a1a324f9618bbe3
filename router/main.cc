// tandem-router: the OpenAI API in front of a cluster of prefill and decode nodes.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "common/base/clock.h"
#include "common/base/exit.h"
#include "common/base/process_limits.h"
#include "common/config/config.h"
#include "common/obs/log.h"
#include "router/app/router.h"

namespace tandem::router {
namespace {

constexpr const char* kProgram = "tandem-router";

struct Arguments {
  std::string config;
  std::string run_dir;
  bool print_config = false;
};

int run(const Arguments& arguments) {
  Result<ClusterConfig> config = load_cluster_config(arguments.config, process_environment());
  if (!config) return report_exit(kProgram, config.error());
  if (arguments.print_config) {
    std::cout << print_config(*config);
    return 0;
  }
  // Signals are taken by sigwait below; every thread inherits the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);  // a terminal that closes, a log that was rotated: not our end
  prepare_process_limits();

  const SteadyClock clock;
  Result<std::unique_ptr<LogSink>> sink = LogSink::open(config->log.file, clock);
  if (!sink) return report_exit(kProgram, sink.error());
  const Logger log = Logger(**sink, config->log.level).with({{"role", "router"}});
  Router router(*config, clock, log);
  if (Status status = router.start(arguments.run_dir); !status) {
    log.error("start_failed", status.error());
    return report_exit(kProgram, status.error());
  }
  int signal = 0;
  sigwait(&signals, &signal);
  router.stop(config->router.drain_timeout, [&signals] {
    const timespec now{};
    if (sigtimedwait(&signals, nullptr, &now) < 0) return false;
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a third one ends the process at once
    return true;
  });
  return 0;
}

}  // namespace
}  // namespace tandem::router

int main(int argc, char** argv) {
  tandem::router::Arguments arguments;
  CLI::App app("The router of a Tandem cluster: OpenAI API, queueing, dispatch, streaming.",
               "tandem-router");
  app.add_option("--config", arguments.config, "Cluster file (docs/configuration.md)")->required();
  app.add_option(
      "--run-dir", arguments.run_dir,
      "Folder for router.json with the ports that were opened; default: none is written");
  app.add_flag("--print-config", arguments.print_config,
               "Print the configuration in effect and exit");
  app.set_version_flag("--version", TANDEM_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : tandem::kExitUsage;
  }
  return tandem::router::run(arguments);
}
