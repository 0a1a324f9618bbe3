#pragma once

#include <chrono>
#include <cstdint>

namespace tandem {

using Duration = std::chrono::nanoseconds;

// A monotonic instant. Only differences mean anything.
struct TimePoint {
  Duration since_start{};
  friend constexpr auto operator<=>(const TimePoint&, const TimePoint&) = default;
  friend constexpr Duration operator-(TimePoint a, TimePoint b) {
    return a.since_start - b.since_start;
  }
  friend constexpr TimePoint operator+(TimePoint t, Duration d) { return {t.since_start + d}; }
  friend constexpr TimePoint operator-(TimePoint t, Duration d) { return {t.since_start - d}; }
};

[[nodiscard]] constexpr double to_seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
[[nodiscard]] constexpr Duration from_seconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

// The only source of time. Thread-safe. Passed in; nothing else calls std::chrono's clocks.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  // Wall clock in seconds since the Unix epoch, for `created` fields and logs only.
  [[nodiscard]] virtual double unix_seconds() const = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override;
  [[nodiscard]] double unix_seconds() const override;
};

// Moves only when told to: unit and sim tests. Not thread-safe.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  [[nodiscard]] double unix_seconds() const override {
    return 1.7e9 + to_seconds(now_.since_start);
  }
  void advance(Duration d) { now_ = now_ + d; }

 private:
  TimePoint now_;
};

}  // namespace tandem
