#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "router/dispatch/types.h"

namespace tandem::router {

// Counts observations in logarithmic buckets, 8 % apart, from 20 us to 20 min. Any thread may
// observe; one thread takes.
class LatencyBuckets {
 public:
  static constexpr size_t kBuckets = 240;
  using Counts = std::array<uint32_t, kBuckets>;
  void observe(double seconds);
  // What was counted since the last take().
  [[nodiscard]] Counts take();
  // Empty without observations.
  [[nodiscard]] static std::optional<double> quantile(const Counts& counts, double q);

 private:
  std::array<std::atomic<uint32_t>, kBuckets> counts_{};
};

// What the status page shows: the latest snapshot, and three minutes of latencies and rates in
// steps of a second. record() functions: any thread. sample(): the cluster thread. json(): any
// thread.
class StatusBoard {
 public:
  // `sampling_members`: those of router/api/request.h.
  StatusBoard(const Clock& clock, std::string model_id, std::string sampling_members,
              std::string version);

  LatencyBuckets ttft, itl, e2e, prefill_to_decode;
  std::atomic<uint64_t> prompt_tokens{0};  // of finished prefills
  std::atomic<uint64_t> output_tokens{0};
  std::atomic<uint64_t> requests{0};  // HTTP requests that generate, however they ended; of these:
  std::atomic<uint64_t> requests_failed{0};
  std::atomic<uint64_t> requests_rejected{0};  // before any work was done
  std::atomic<uint64_t> requests_left{0};      // by their clients

  // Once a second.
  void sample(std::shared_ptr<const ClusterSnapshot> snapshot);
  // The document of README.md.
  [[nodiscard]] std::string json(const ClusterSnapshot& snapshot, uint32_t max_context) const;
  [[nodiscard]] double uptime_seconds() const;

 private:
  struct Second {
    double t = 0;  // uptime
    LatencyBuckets::Counts ttft, itl, e2e, prefill_to_decode;
    double prompt_tps = 0, output_tps = 0;
    uint32_t queued = 0, running = 0;
  };
  static constexpr size_t kHistory = 180;
  static constexpr size_t kQuantileWindow = 60;

  void append_latency(std::string& out, std::string_view name,
                      LatencyBuckets::Counts Second::*member) const;
  void append_history(std::string& out) const;

  const Clock& clock_;
  const std::string model_id_;
  const std::string sampling_members_;
  const std::string version_;
  const TimePoint start_;
  mutable std::mutex mutex_;  // guards history_
  std::deque<Second> history_;
  uint64_t last_prompt_tokens_ = 0;
  uint64_t last_output_tokens_ = 0;
  TimePoint last_sample_;
};

}  // namespace tandem::router
