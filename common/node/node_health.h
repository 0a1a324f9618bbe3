#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/net/http_router.h"
#include "common/obs/metrics.h"

namespace tandem::node {

// Whether a node is live (its scheduler's tick advances) and ready (its self-test passed, a router
// has admitted it and it does not drain), as /health and the ready gauge tell it. Any thread.
class NodeHealth {
 public:
  NodeHealth(const Clock& clock, MetricsRegistry& metrics, const std::string& role);

  void passed_self_test() { change(self_test_passed_, true); }
  void admitted(bool now) { change(admitted_, now); }
  void draining() { change(draining_, true); }
  void ticked();

  [[nodiscard]] bool self_test_passed() const { return self_test_passed_; }
  // Adds /health/live and /health/ready; the router of requests must not outlive this.
  void serve(HttpRouter& routes) const;

 private:
  void change(std::atomic<bool>& what, bool now);

  const Clock& clock_;
  std::mutex changing_;  // the gauge always shows the last change
  Gauge ready_;
  std::atomic<bool> self_test_passed_{false};
  std::atomic<bool> admitted_{false};
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> last_tick_{0};  // nanoseconds of the clock; 0: not started
};

}  // namespace tandem::node
