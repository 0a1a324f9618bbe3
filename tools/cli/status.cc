#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/command.h"
#include "tools/cli/status_text.h"
#include "tools/client/server_flags.h"
#include "tools/run_dir/run_dir.h"
#include "tools/supervise/box_status.h"

namespace tandem::cli {
namespace {

namespace json = boost::json;

struct StatusFlags {
  client::ServerFlags server;
  bool json = false;
  bool url_only = false;
};

// What runs here, unless the flags name another cluster or nothing does.
std::optional<rundir::SupervisorState> state_here(const std::string& run_dir,
                                                  const StatusFlags& flags) {
  if (!flags.server.url.empty() || !rundir::lock_holder(run_dir)) return std::nullopt;
  return rundir::read_state(run_dir);
}

// A box whose router is elsewhere: its nodes tell.
void nodes_status(const StatusFlags& flags, const supervise::BoxStatus& box,
                  CommandContext& context) {
  const std::string text = flags.json ? render_json(box) + "\n" : render_text(box);
  std::printf("%s", text.c_str());
  if (!box.ready()) context.exit_code = kExitFailure;
}

Status status(const StatusFlags& flags, CommandContext& context) {
  const std::string run_dir = rundir::resolve_run_dir(flags.server.run_dir, context.environment);
  const auto here = state_here(run_dir, flags);
  if (here && !here->has_router() && !flags.url_only) {
    nodes_status(flags, supervise::box_status(run_dir, *here), context);
    return {};
  }
  TANDEM_ASSIGN(const client::FetchOptions options,
                client::resolve_server(flags.server, context.environment));
  if (flags.url_only) {
    std::printf("%s\n", options.url.c_str());
    return {};
  }
  TANDEM_ASSIGN(auto fetcher, client::HttpFetcher::create(options));
  TANDEM_ASSIGN(const json::object value, fetcher->get_object("/status"));
  std::optional<supervise::BoxStatus> box;
  if (here) box = supervise::box_status(run_dir, *here);
  if (flags.json) {
    std::printf("%s\n", json::serialize(value).c_str());
  } else {
    std::printf("%s", render_status(value, options.url).c_str());
    if (box) std::printf("\n%s", render_text(*box).c_str());
  }
  const json::value* serves = value.if_contains("ready");
  const bool ready = serves != nullptr && serves->is_bool() && serves->get_bool();
  if (!ready || (box && !box->ready())) context.exit_code = kExitFailure;
  return {};
}

}  // namespace

void add_status(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app.add_subcommand(
      "status",
      "nodes, queues, KV and transfers of a running cluster, or the processes of a box with nodes "
      "alone; exit code 1 unless the router can serve and every process that was started here is "
      "ready");
  client::add_server_flags(*command, flags->server);
  command->add_flag("--json", flags->json,
                    "print one JSON object: the router's /status, or this box's processes");
  command->add_flag("--url-only", flags->url_only, "print the API's address and nothing else");
  command->callback(
      [flags, &context] { run(context, "status", [&] { return status(*flags, context); }); });
}

}  // namespace tandem::cli
