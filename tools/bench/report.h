#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::bench {

// What one request experienced. Times in seconds since the request was due, not since it was sent:
// an open-loop client that falls behind must not hide it (coordinated omission).
struct Observation {
  bool completed = false;
  std::string error;           // "http 429: the queue is full", …; empty when completed
  double lateness = 0;         // sent minus due
  double ttft = 0;             // due to first token
  std::vector<double> gaps;    // between successive token events
  double e2e = 0;              // due to last byte
  uint32_t prompt_tokens = 0;  // as the server counted
  uint32_t output_tokens = 0;
  std::optional<uint32_t> cached_tokens;  // empty: the server does not tell
};

struct Slo {
  double ttft_seconds = 1.0;
  double itl_seconds = 0.1;  // bound on a request's mean gap between tokens
};

// Value at rank ceil(q * n) of the sorted sample (nearest-rank); NaN for an empty one.
[[nodiscard]] double percentile(std::vector<double> sample, double q);

struct Quantiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
[[nodiscard]] Quantiles quantiles(const std::vector<double>& sample);

struct Report {
  size_t sent = 0, completed = 0, failed = 0;
  size_t planned = 0;  // more than `sent`: stopped early; the caller fills it in
  std::map<std::string, size_t> errors;
  double seconds = 0;  // first due to last end
  uint64_t prompt_tokens = 0, output_tokens = 0;
  std::optional<uint64_t> cached_tokens;  // of the prompts, from the server's prefix cache
  uint64_t seed = 0;                      // of arrivals and prompts; the caller fills it in
  Quantiles ttft, itl, e2e, lateness;
  Slo slo;
  size_t within_slo = 0;  // completed, with ttft and mean gap inside the bounds
};

[[nodiscard]] Report summarize(const std::vector<Observation>& observations, double seconds,
                               const Slo& slo);
[[nodiscard]] std::string to_json(const Report& report);
// What was not measured is "-"; of many different errors the most frequent are shown.
[[nodiscard]] std::string to_table(const Report& report);

}  // namespace tandem::bench
