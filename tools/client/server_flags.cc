#include "tools/client/server_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "tools/supervise/run_dir.h"

namespace tandem::client {

void add_server_flags(CLI::App& command, ServerFlags& flags) {
  command.add_option("--url", flags.url,
                     "of the API; default: the cluster that `tandem up` started here");
  command.add_option("--run-dir", flags.run_dir, "as given to `tandem up`");
  command.add_option("--api-key", flags.api_key, "default: TANDEM_API_KEY of the environment");
  command.add_flag("--insecure", flags.insecure, "accept any TLS certificate");
}

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
    const std::string run_dir =
        flags.run_dir.empty() ? supervise::default_run_dir(environment) : flags.run_dir;
    const bool running = supervise::lock_holder(run_dir).has_value();
    const auto state = running ? supervise::read_state(run_dir) : std::nullopt;
    if (!state || state->url.empty()) {
      return fail(ErrorCode::kUnavailable,
                  "no cluster runs from " + run_dir +
                      "; start one with `tandem up FILE.yaml`, or name one with --url");
    }
    options.url = state->url;
  }
  options.url = server_root(std::move(options.url));
  return options;
}

}  // namespace tandem::client
