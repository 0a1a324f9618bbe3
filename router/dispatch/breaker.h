#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/clock.h"
#include "router/dispatch/types.h"

namespace tandem::router {

// How an outcome counts for a node's health (design.md section 3).
enum class Outcome : uint8_t {
  kSuccess,
  kNeutral,       // the client's fault
  kBackpressure,  // the node is full: slow down, it is healthy
  kFailure,       // transport faults and other 5xx
};
// By the label of the error table; an unknown label is a failure.
[[nodiscard]] Outcome classify(std::string_view error_label);

// Opens after consecutive failures, lets one request through after a pause that doubles, closes on
// its success. Cluster thread.
class Breaker {
 public:
  // True when it opened by this.
  bool record(Outcome outcome, TimePoint now);
  // Whether a request may be sent now.
  [[nodiscard]] bool allows(TimePoint now) const;
  // A request is being sent: in half-open state it is the probe.
  void on_dispatch(TimePoint now);
  [[nodiscard]] BreakerState state(TimePoint now) const;

 private:
  static constexpr uint32_t kThreshold = 3;
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::seconds(30);

  uint32_t failures_ = 0;
  bool open_ = false;
  bool probing_ = false;
  TimePoint probe_since_;
  Duration pause_ = kFirstPause;
  TimePoint retry_at_;
};

}  // namespace tandem::router
