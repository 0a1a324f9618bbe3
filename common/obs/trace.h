#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/obs/log.h"

namespace tandem {

// The moments of one request (or of a start-up), in order: trace.mark("queued"). One thread at a
// time. Keeps at most kMaxMarks; names must outlive the trace (literals).
class Trace {
 public:
  static constexpr size_t kMaxMarks = 32;

  explicit Trace(const Clock& clock) : clock_(&clock), start_(clock.now()) {}

  void mark(std::string_view name);
  // Seconds from the start, or from the mark `from`, to the mark `to`; negative if either is
  // missing.
  [[nodiscard]] double seconds_to(std::string_view to) const;
  [[nodiscard]] double seconds_between(std::string_view from, std::string_view to) const;
  [[nodiscard]] TimePoint start() const { return start_; }
  // {"queued":0.0001,"prefill":0.5}: each mark's seconds from the start.
  [[nodiscard]] std::string to_json() const;

 private:
  const Clock* clock_;
  TimePoint start_;
  std::vector<std::pair<std::string_view, TimePoint>> marks_;
};

// Logs how long each phase of a start took: phases.next("load_weights") ends the phase before it,
// done() the last one. Without done() the start failed, and its last phase is not told.
class StartupPhases {
 public:
  StartupPhases(const Clock& clock, Logger log);
  void next(std::string_view phase);
  void done();

 private:
  void end_phase();
  const Clock& clock_;
  const Logger log_;
  const TimePoint start_;
  TimePoint phase_start_;
  std::string phase_;
  bool done_ = false;
};

}  // namespace tandem
