#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/clock.h"

namespace tandem::decode {

// How long a request has been ready without being served: grows while it waits, and is used up once
// it has had its turn of kTurnSteps steps (one KV block), so that newcomers never queue behind the
// memory of old waits.
class QueueAge {
 public:
  static constexpr uint32_t kTurnSteps = 16;
  void waited(Duration time) { waited_ += time; }
  void ran() {
    if (++steps_ < kTurnSteps) return;
    steps_ = 0;
    waited_ = {};
  }
  [[nodiscard]] Duration value() const { return waited_; }

 private:
  Duration waited_{};
  uint32_t steps_ = 0;
};

// One request that could take part in the next decode step.
struct BatchCandidate {
  uint32_t generated = 0;  // answer tokens so far
  Duration waited{};       // QueueAge
  uint64_t arrival = 0;    // order of arrival, breaks ties
};

// generated / (longest generated) + waited / ageing. The first term is at most 1 and that of a
// running request stands still or falls back, so whoever waits overtakes everything that runs after
// a bounded time: about two ageing times, and a turn of everybody that waited longer.
[[nodiscard]] double batch_score(const BatchCandidate& candidate, uint32_t longest,
                                 Duration ageing);

// Indexes of all candidates, best first: longest generation first, with ageing. Pure.
[[nodiscard]] std::vector<size_t> rank_batch(std::span<const BatchCandidate> candidates,
                                             Duration ageing);

}  // namespace tandem::decode
