#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/cli/command.h"
#include "tools/cli/status_text.h"
#include "tools/client/server_flags.h"
#include "tools/supervise/run_dir.h"

namespace tandem::cli {
namespace {

namespace json = boost::json;

struct StatusFlags {
  client::ServerFlags server;
  bool json = false;
  bool url_only = false;
};

void print_processes(const StatusFlags& flags, const Environment& environment) {
  if (!flags.server.url.empty()) return;
  const std::string run_dir =
      flags.server.run_dir.empty() ? supervise::default_run_dir(environment) : flags.server.run_dir;
  const auto state = supervise::read_state(run_dir);
  if (!state) return;
  std::printf("\nprocesses of %s, logs in %s\n", state->config.c_str(), run_dir.c_str());
  for (const auto& process : state->processes) {
    std::printf("  %-14s %-10s pid %-8d restarts %u\n", process.name.c_str(), process.state.c_str(),
                process.pid, process.restarts);
  }
}

Status status(const StatusFlags& flags, CommandContext& context) {
  TANDEM_ASSIGN(const client::FetchOptions options,
                client::resolve_server(flags.server, context.environment));
  if (flags.url_only) {
    std::printf("%s\n", options.url.c_str());
    return {};
  }
  TANDEM_ASSIGN(auto fetcher, client::HttpFetcher::create(options));
  TANDEM_ASSIGN(const json::object value, fetcher->get_object("/status"));
  if (flags.json) {
    std::printf("%s\n", json::serialize(value).c_str());
  } else {
    std::printf("%s", render_status(value, options.url).c_str());
    print_processes(flags, context.environment);
  }
  const json::value* ready = value.if_contains("ready");
  if (ready == nullptr || !ready->is_bool() || !ready->get_bool()) context.exit_code = kExitFailure;
  return {};
}

}  // namespace

void add_status(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app.add_subcommand(
      "status",
      "nodes, queues, KV and transfers of a running cluster; exit code 1 unless it is ready");
  client::add_server_flags(*command, flags->server);
  command->add_flag("--json", flags->json, "print the router's /status as it is");
  command->add_flag("--url-only", flags->url_only, "print the API's address and nothing else");
  command->callback(
      [flags, &context] { run(context, "status", [&] { return status(*flags, context); }); });
}

}  // namespace tandem::cli
