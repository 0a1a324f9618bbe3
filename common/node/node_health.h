#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/net/http_router.h"
#include "common/obs/metrics.h"

namespace tandem::node {

// How a node stands with its router.
enum class Registration : uint8_t { kNotYet, kUnreachable, kRefused, kRegistered };

// Whether a node is live (its scheduler's tick advances) and ready (its self-test passed, a router
// has admitted it and it does not drain), as /health, /status and the ready gauge tell it. Any
// thread.
class NodeHealth {
 public:
  struct Who {
    std::string role;    // "decode"
    std::string name;    // "decode-0"
    std::string router;  // host:port that it dials
  };
  NodeHealth(const Clock& clock, MetricsRegistry& metrics, Who who);

  void passed_self_test();
  // `reason` says why not, in the router's or the system's words; `lasting`: of kRefused, that it
  // stays so (ControlClient::Refusal).
  void registration(Registration now, std::string reason = {}, bool lasting = false);
  void draining();
  void ticked();

  [[nodiscard]] bool self_test_passed() const;
  // Adds /health/live, /health/ready and /status; the router of requests must not outlive this.
  void serve(HttpRouter& routes) const;

 private:
  struct State {
    bool self_test_passed = false;
    bool draining = false;
    Registration registration = Registration::kNotYet;
    std::string reason;
    bool lasting = false;
  };
  [[nodiscard]] State state() const;
  template <typename Change>
  void change(Change&& change);
  [[nodiscard]] std::string status_json() const;

  const Clock& clock_;
  const Who who_;
  mutable std::mutex mutex_;  // the gauge always shows the last change
  State state_;
  Gauge ready_;
  std::atomic<int64_t> last_tick_{0};  // nanoseconds of the clock; 0: not started
};

}  // namespace tandem::node
