#include "tools/client/server_flags.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <utility>

#include "tools/run_dir/leftovers.h"
#include "tools/run_dir/run_dir.h"

namespace tandem::client {

void add_server_flags(CLI::App& command, ServerFlags& flags) {
  command.add_option("--url", flags.url,
                     "of the API; default: the cluster that `tandem up` started here");
  command.add_option("--run-dir", flags.run_dir, "as given to `tandem up`");
  command.add_option("--api-key", flags.api_key, "default: TANDEM_API_KEY of the environment");
  command.add_flag("--insecure", flags.insecure, "accept any TLS certificate");
}

namespace {

Error no_api(const std::string& run_dir, const std::optional<rundir::SupervisorState>& state) {
  std::string detail = "no cluster runs from " + run_dir +
                       "; start one with `tandem up FILE.yaml`, find one that was started in "
                       "another folder with --run-dir";
  if (state && state->has_router()) detail = "the router of " + run_dir + " does not listen yet";
  if (state && !state->has_router()) {
    detail = "there is no router among the processes of " + run_dir +
             ", only nodes; `tandem status` tells which router they belong to";
  }
  if (!state && !rundir::leftovers(run_dir).empty()) {
    detail = "the supervisor of " + run_dir + " died; `tandem down` stops what it left";
  }
  return make_error(ErrorCode::kUnavailable, detail + ", or name a cluster with --url");
}

}  // namespace

Result<FetchOptions> resolve_server(const ServerFlags& flags, const Environment& environment) {
  FetchOptions options;
  options.url = flags.url;
  options.api_key = flags.api_key;
  options.verify_certificate = !flags.insecure;
  if (const auto key = environment.find("TANDEM_API_KEY");
      options.api_key.empty() && key != environment.end()) {
    options.api_key = key->second;
  }
  if (options.url.empty()) {
    const std::string run_dir = rundir::resolve_run_dir(flags.run_dir, environment);
    const bool running = rundir::lock_holder(run_dir).has_value();
    const auto state = running ? rundir::read_state(run_dir) : std::nullopt;
    if (!state || state->url.empty()) return fail(no_api(run_dir, state));
    options.url = state->url;
  }
  options.url = server_root(std::move(options.url));
  return options;
}

}  // namespace tandem::client
