#include "common/obs/trace.h"

#include "common/base/json_text.h"

namespace tandem {

void Trace::mark(std::string_view name) {
  if (marks_.size() < kMaxMarks) marks_.emplace_back(name, clock_->now());
}

double Trace::seconds_to(std::string_view to) const {
  for (const auto& [name, time] : marks_) {
    if (name == to) return to_seconds(time - start_);
  }
  return -1;
}

double Trace::seconds_between(std::string_view from, std::string_view to) const {
  const double begin = seconds_to(from);
  const double end = seconds_to(to);
  return begin < 0 || end < 0 ? -1 : end - begin;
}

std::string Trace::to_json() const {
  std::string out = "{";
  for (const auto& [name, time] : marks_) {
    if (out.size() > 1) out += ',';
    append_json_string(out, name);
    out += ':';
    append_json_number(out, to_seconds(time - start_));
  }
  return out + "}";
}

StartupPhases::StartupPhases(const Clock& clock, Logger log)
    : clock_(clock), log_(std::move(log)), start_(clock.now()), phase_start_(start_) {}

void StartupPhases::next(std::string_view phase) {
  end_phase();
  phase_ = phase;
  phase_start_ = clock_.now();
}

void StartupPhases::done() {
  if (done_) return;
  end_phase();
  done_ = true;
  log_.info("startup_done", {{"seconds", to_seconds(clock_.now() - start_)}});
}

void StartupPhases::end_phase() {
  if (phase_.empty()) return;
  log_.info("startup_phase",
            {{"phase", phase_}, {"seconds", to_seconds(clock_.now() - phase_start_)}});
  phase_.clear();
}

}  // namespace tandem
