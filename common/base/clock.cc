#include "common/base/clock.h"

namespace tandem {

TimePoint SteadyClock::now() const {
  return {
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

double SteadyClock::unix_seconds() const {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tandem
