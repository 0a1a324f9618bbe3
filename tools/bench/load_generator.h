#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "tools/bench/report.h"
#include "tools/bench/trace.h"

namespace tandem::bench {

struct LoadOptions {
  std::string url;  // of the server, e.g. http://127.0.0.1:8000; see client::server_root()
  std::string api_key;
  std::string model;  // empty: the first that /v1/models lists
  // 0: open loop, every request is sent when it is due. N: closed loop, the next request is sent as
  // soon as fewer than N are open, and due times are ignored.
  uint32_t concurrency = 0;
  uint32_t max_open = 4096;  // open loop: beyond it a request fails as "client limit"
  double length_scale = 1;   // as applied to the trace, for its hash blocks
  uint64_t seed = 1;
  Duration request_timeout = std::chrono::minutes(10);
  bool verify_certificate = true;
  Slo slo;
  std::function<void(const std::string& line)> progress;  // about once a second; may be empty
  // Asked ten times a second, on the loop's thread: true cuts what is open and ends the load. The
  // report is then of what had ended. May be empty.
  std::function<bool()> stopped;
};

// Sends the load to an OpenAI-compatible server as streamed completions of exact length (token-id
// prompts, ignore_eos) and reports what clients experienced. Blocks.
[[nodiscard]] Result<Report> run_load(const std::vector<TraceRequest>& load,
                                      const LoadOptions& options, const Clock& clock);

}  // namespace tandem::bench
