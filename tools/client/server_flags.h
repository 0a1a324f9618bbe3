#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/config/environment.h"
#include "tools/client/http_fetch.h"

namespace CLI {
class App;
}

namespace tandem::client {

// --url, --run-dir, --api-key, --insecure: the flags of commands that talk to a running cluster.
struct ServerFlags {
  std::string url;  // empty: the router of the run directory
  std::string run_dir;
  std::string api_key;  // empty: TANDEM_API_KEY of the environment
  bool insecure = false;
};
void add_server_flags(CLI::App& command, ServerFlags& flags);

// Fills in what the flags left open, from the run directory and the environment; the URL is that
// of server_root(). kUnavailable, saying what to do, when no cluster is known.
[[nodiscard]] Result<FetchOptions> resolve_server(const ServerFlags& flags,
                                                  const Environment& environment);

}  // namespace tandem::client
