#include "common/node/node_health.h"

#include <algorithm>
#include <utility>

namespace tandem::node {
namespace {

// A scheduler that has not ticked for so long is stuck.
constexpr Duration kStuck = std::chrono::seconds(5);

HttpResponse text(int status, std::string body) {
  return {.status = status,
          .content_type = "text/plain; charset=utf-8",
          .headers = {},
          .body = std::move(body)};
}

}  // namespace

NodeHealth::NodeHealth(const Clock& clock, MetricsRegistry& metrics, const std::string& role)
    : clock_(clock),
      ready_(metrics.gauge("tandem_" + role + "_ready",
                           "1 when admitted by a router and not draining")) {}

void NodeHealth::change(std::atomic<bool>& what, bool now) {
  const std::lock_guard lock(changing_);
  what = now;
  ready_.set(admitted_ && self_test_passed_ && !draining_ ? 1 : 0);
}

void NodeHealth::ticked() {
  last_tick_.store(std::max<int64_t>(clock_.now().since_start.count(), 1),
                   std::memory_order_relaxed);
}

void NodeHealth::serve(HttpRouter& routes) const {
  routes.exact("GET", "/health/live", [this](const HttpRequest&, const HttpResponder& r) {
    const int64_t last = last_tick_.load(std::memory_order_relaxed);
    const bool stuck = last != 0 && clock_.now().since_start - Duration(last) > kStuck;
    r.respond(stuck ? text(503, "the scheduler does not advance\n") : text(200, "live\n"));
  });
  routes.exact("GET", "/health/ready", [this](const HttpRequest&, const HttpResponder& r) {
    if (!self_test_passed_) {
      r.respond(text(503, "starting\n"));
    } else if (draining_) {
      r.respond(text(503, "draining\n"));
    } else if (!admitted_) {
      r.respond(text(503, "not admitted by a router\n"));
    } else {
      r.respond(text(200, "ready\n"));
    }
  });
}

}  // namespace tandem::node
