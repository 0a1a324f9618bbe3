#include "common/node/node_main.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/exit.h"
#include "common/base/process_limits.h"
#include "common/config/cache_folder.h"
#include "common/config/config.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"

namespace tandem::node {
namespace {

constexpr long kPollNanoseconds = 50'000'000;

struct Flags {
  std::string config;
  std::string name;
  std::string run_dir;
  bool print_config = false;
};

sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// The next end signal, or 0 when none came within one poll.
int poll_signal(const sigset_t& set) {
  const timespec wait{.tv_sec = 0, .tv_nsec = kPollNanoseconds};
  const int signal = sigtimedwait(&set, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

void drain(NodeProcess& process, Duration limit, const Clock& clock, const Logger& log,
           const sigset_t& set) {
  log.info("draining", {{"limit_seconds", to_seconds(limit)}});
  process.drain();
  const TimePoint end = clock.now() + limit;
  while (!process.idle() && clock.now() < end) {
    if (poll_signal(set) == 0) continue;
    log.warning("drain_cut_short", {{"reason", "a second signal"}});
    return;
  }
  log.info("drained", {{"complete", process.idle()}});
}

int run(const NodeMain& main, const ClusterConfig& config, const Flags& flags,
        const std::string& cache_dir) {
  auto spec = main.spec(config, flags.name);
  if (!spec) return report_exit(main.binary, spec.error());
  spec->run_dir = flags.run_dir;
  spec->cache_dir = cache_dir;
  spec->version = TANDEM_VERSION;
  const SteadyClock clock;
  auto sink = LogSink::open(config.log.file, clock);
  if (!sink) return report_exit(main.binary, sink.error());
  const Logger log = Logger(**sink, config.log.level)
                         .with({{"role", spec->role_name}, {"node", spec->settings.name}});
  MetricsRegistry metrics;
  const sigset_t signals = end_signals();
  NodeProcess process(*spec, clock, log, metrics);
  if (auto status = process.start(); !status) return report_exit(main.binary, status.error());
  while (poll_signal(signals) == 0) {
    // Not a word more to the router than the end of the connection: it treats that as a node's
    // death, which fails everything over.
    if (process.failed()) return 1;
  }
  drain(process, spec->settings.drain_timeout, clock, log, signals);
  return 0;
}

}  // namespace

int node_main(int argc, char** argv, const NodeMain& main) {
  Flags flags;
  CLI::App app(main.description, main.binary);
  app.add_option("--config", flags.config, "cluster file (docs/configuration.md)")->required();
  app.add_option("--name", flags.name,
                 "this node's name in the file; default: the only one of its role");
  app.add_option("--run-dir", flags.run_dir,
                 "folder for NAME.json with this node's endpoints; default: none is written");
  app.add_flag("--print-config", flags.print_config, "print every setting and stop");
  app.set_version_flag("--version", std::string(TANDEM_VERSION));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kExitUsage;
  }
  // Before any thread starts, so that all inherit it and only poll_signal() sees these signals.
  const sigset_t signals = end_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A terminal that closes, a log that was rotated: not our end. UCX would begin to log everything.
  signal(SIGHUP, SIG_IGN);
  prepare_process_limits();
  const Environment environment = process_environment();
  const auto config = load_cluster_config(flags.config, environment);
  if (!config) return report_exit(main.binary, config.error());
  if (flags.print_config) {
    std::fputs(print_config(*config).c_str(), stdout);
    return 0;
  }
  const std::string& cache = config->gpu.cache;
  return run(main, *config, flags, cache.empty() ? cache_folder(environment) : cache);
}

}  // namespace tandem::node
