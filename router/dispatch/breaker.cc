#include "router/dispatch/breaker.h"

#include <algorithm>
#include <array>

#include "common/base/error.h"

namespace tandem::router {

namespace {

constexpr std::array kAllCodes{ErrorCode::kInvalidArgument,
                               ErrorCode::kUnauthenticated,
                               ErrorCode::kNotFound,
                               ErrorCode::kMethodNotAllowed,
                               ErrorCode::kPayloadTooLarge,
                               ErrorCode::kRequestTimeout,
                               ErrorCode::kCancelled,
                               ErrorCode::kQueueFull,
                               ErrorCode::kDeadlineExceeded,
                               ErrorCode::kUnavailable,
                               ErrorCode::kResourceExhausted,
                               ErrorCode::kUnsupported,
                               ErrorCode::kCorruptData,
                               ErrorCode::kMismatch,
                               ErrorCode::kTransport,
                               ErrorCode::kIo,
                               ErrorCode::kConfig,
                               ErrorCode::kInternal,
                               ErrorCode::kDeviceLost};

// A probe that never comes back must not shut a node out for ever.
constexpr Duration kProbePatience = std::chrono::seconds(60);

}  // namespace

Outcome classify(std::string_view error_label) {
  for (ErrorCode code : kAllCodes) {
    const ErrorTraits& traits = error_traits(code);
    if (traits.label != error_label) continue;
    if (traits.http_status == 429 || traits.http_status == 503) return Outcome::kBackpressure;
    return traits.http_status < 500 ? Outcome::kNeutral : Outcome::kFailure;
  }
  return Outcome::kFailure;
}

bool Breaker::record(Outcome outcome, TimePoint now) {
  switch (outcome) {
    case Outcome::kSuccess:
      failures_ = 0;
      open_ = false;
      probing_ = false;
      pause_ = kFirstPause;
      return false;
    case Outcome::kNeutral:
    case Outcome::kBackpressure:
      // A full node answers, so a probe that it refuses has shown what it was to show.
      if (probing_) return record(Outcome::kSuccess, now);
      return false;
    case Outcome::kFailure:
      break;
  }
  ++failures_;
  if (open_ && !probing_) return false;  // a straggler of before
  if (!open_ && failures_ < kThreshold) return false;
  if (open_) pause_ = std::min(pause_ * 2, kLongestPause);
  open_ = true;
  probing_ = false;
  retry_at_ = now + pause_;
  return true;
}

bool Breaker::allows(TimePoint now) const {
  if (!open_) return true;
  if (probing_) return now - probe_since_ > kProbePatience;
  return now >= retry_at_;
}

void Breaker::on_dispatch(TimePoint now) {
  if (!open_) return;
  probing_ = true;
  probe_since_ = now;
}

BreakerState Breaker::state(TimePoint now) const {
  if (!open_) return BreakerState::kClosed;
  return probing_ || now >= retry_at_ ? BreakerState::kHalfOpen : BreakerState::kOpen;
}

std::string_view to_string(BreakerState state) {
  switch (state) {
    case BreakerState::kClosed:
      return "closed";
    case BreakerState::kHalfOpen:
      return "half_open";
    case BreakerState::kOpen:
      return "open";
  }
  return {};
}

}  // namespace tandem::router
