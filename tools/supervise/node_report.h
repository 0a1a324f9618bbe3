#pragma once

#include <string>

#include "common/base/result.h"

namespace tandem::client {
class HttpFetcher;
}

namespace tandem::supervise {

// What a node's /status says (common/node/node_health.h).
struct NodeReport {
  std::string state;         // starting, waiting (for its router), ready, draining
  std::string router;        // host:port that it dials
  std::string registration;  // connecting, unreachable, refused, registered
  std::string reason;        // of unreachable and refused, in the system's or the router's words
  bool lasting = false;      // of refused: waiting does not change it

  [[nodiscard]] bool ready() const { return state == "ready"; }
  [[nodiscard]] bool unreachable() const { return registration == "unreachable"; }
  [[nodiscard]] bool refused() const { return registration == "refused"; }
};

// Errors: kTransport and the like for a node that does not answer, kUnavailable for another answer.
[[nodiscard]] Result<NodeReport> ask_node(client::HttpFetcher& node);

// "registered with HOST:PORT", "refused by the router at HOST:PORT: its reason", …
[[nodiscard]] std::string describe(const NodeReport& report);

}  // namespace tandem::supervise
