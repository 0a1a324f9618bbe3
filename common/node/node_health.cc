#include "common/node/node_health.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "common/base/json_text.h"

namespace tandem::node {
namespace {

// A scheduler that has not ticked for so long is stuck.
constexpr Duration kStuck = std::chrono::seconds(5);

// As the page /status and whoever reads it (tools/supervise) spell them.
constexpr std::array<std::string_view, 4> kRegistrationNames{"connecting", "unreachable", "refused",
                                                             "registered"};

HttpResponse text(int status, std::string body) {
  return {.status = status,
          .content_type = "text/plain; charset=utf-8",
          .headers = {},
          .body = std::move(body)};
}

void append_member(std::string& out, std::string_view name, std::string_view value) {
  if (out.back() != '{') out += ',';
  append_json_string(out, name);
  out += ':';
  append_json_string(out, value);
}

}  // namespace

NodeHealth::NodeHealth(const Clock& clock, MetricsRegistry& metrics, Who who)
    : clock_(clock),
      who_(std::move(who)),
      ready_(metrics.gauge("tandem_" + who_.role + "_ready",
                           "1 when admitted by a router and not draining")) {}

template <typename Change>
void NodeHealth::change(Change&& change) {
  const std::lock_guard lock(mutex_);
  change(state_);
  const bool registered = state_.registration == Registration::kRegistered;
  ready_.set(registered && state_.self_test_passed && !state_.draining ? 1 : 0);
}

NodeHealth::State NodeHealth::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void NodeHealth::passed_self_test() {
  change([](State& s) { s.self_test_passed = true; });
}

void NodeHealth::registration(Registration now, std::string reason, bool lasting) {
  change([&](State& s) {
    s.registration = now;
    s.reason = std::move(reason);
    s.lasting = lasting;
  });
}

void NodeHealth::draining() {
  change([](State& s) { s.draining = true; });
}

bool NodeHealth::self_test_passed() const { return state().self_test_passed; }

void NodeHealth::ticked() {
  last_tick_.store(std::max<int64_t>(clock_.now().since_start.count(), 1),
                   std::memory_order_relaxed);
}

std::string NodeHealth::status_json() const {
  const State now = state();
  const bool registered = now.registration == Registration::kRegistered;
  std::string out = "{";
  append_member(out, "role", who_.role);
  append_member(out, "name", who_.name);
  append_member(out, "state",
                !now.self_test_passed ? "starting"
                : now.draining        ? "draining"
                : registered          ? "ready"
                                      : "waiting");
  out += ",\"pid\":";
  append_json_integer(out, ::getpid());
  out += ",\"router\":{";
  append_member(out, "address", who_.router);
  append_member(out, "state", kRegistrationNames[static_cast<size_t>(now.registration)]);
  append_member(out, "reason", now.reason);
  out += now.lasting ? ",\"lasting\":true" : ",\"lasting\":false";
  return out + "}}\n";
}

void NodeHealth::serve(HttpRouter& routes) const {
  routes.exact("GET", "/health/live", [this](const HttpRequest&, const HttpResponder& r) {
    const int64_t last = last_tick_.load(std::memory_order_relaxed);
    const bool stuck = last != 0 && clock_.now().since_start - Duration(last) > kStuck;
    r.respond(stuck ? text(503, "the scheduler does not advance\n") : text(200, "live\n"));
  });
  routes.exact("GET", "/health/ready", [this](const HttpRequest&, const HttpResponder& r) {
    const State now = state();
    if (!now.self_test_passed) {
      r.respond(text(503, "starting\n"));
    } else if (now.draining) {
      r.respond(text(503, "draining\n"));
    } else if (now.registration != Registration::kRegistered) {
      r.respond(text(503, "not admitted by a router" +
                              (now.reason.empty() ? now.reason : ": " + now.reason) + "\n"));
    } else {
      r.respond(text(200, "ready\n"));
    }
  });
  routes.exact("GET", "/status", [this](const HttpRequest&, const HttpResponder& r) {
    r.respond(
        {.status = 200, .content_type = "application/json", .headers = {}, .body = status_json()});
  });
}

}  // namespace tandem::node
