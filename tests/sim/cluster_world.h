#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "common/base/clock.h"

namespace tandem::sim {

// Simulated time and everything that is to happen in it. Single-threaded and deterministic for a
// seed.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] TimePoint now() const { return clock_.now(); }

  void after(Duration delay, std::function<void()> work) {
    events_.emplace(std::pair(now() + std::max(delay, Duration{0}), next_++), std::move(work));
  }

  // Runs everything due within `span` and leaves the clock at its end.
  void run_for(Duration span) {
    const TimePoint end = now() + span;
    while (!events_.empty() && events_.begin()->first.first <= end) {
      auto node = events_.extract(events_.begin());
      clock_.advance(node.key().first - now());
      node.mapped()();
      if (after_each) after_each();
    }
    clock_.advance(end - now());
  }

  // Until `done` holds; false when `limit` has passed first.
  template <typename Predicate>
  [[nodiscard]] bool run_until(Predicate done, Duration limit) {
    const TimePoint end = now() + limit;
    while (!done()) {
      if (events_.empty() || events_.begin()->first.first > end) return false;
      run_for(std::max(events_.begin()->first.first - now(), Duration{0}));
    }
    return true;
  }

  // Runs after every event: whoever has queues of its own drains them here.
  std::function<void()> after_each;

  [[nodiscard]] uint64_t draw() { return random_(); }
  [[nodiscard]] uint64_t draw(uint64_t low, uint64_t high) {
    return low + random_() % (high - low + 1);
  }
  [[nodiscard]] bool chance(double p) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < p;
  }
  [[nodiscard]] Duration draw(Duration low, Duration high) {
    return low + Duration(static_cast<int64_t>(random_() %
                                               static_cast<uint64_t>((high - low).count() + 1)));
  }

 private:
  ManualClock clock_;
  std::mt19937_64 random_;
  uint64_t next_ = 0;
  std::map<std::pair<TimePoint, uint64_t>, std::function<void()>> events_;
};

}  // namespace tandem::sim
