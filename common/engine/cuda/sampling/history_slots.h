#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/sampling.h"

namespace tandem::engine {

// What has to be copied to entry `from` of a slot's history before the step. Empty once a sequence
// is known: the sampling kernel appends what it draws, except behind guesses.
struct HistoryUpload {
  uint32_t slot = 0;
  uint32_t from = 0;
  std::span<const TokenId> tokens;
};

// Which sequences' tokens lie in which slot of the device's history memory. A sequence is known by
// TokenHistory::sequence; between two steps it may only grow, or be cut and then say so by calling
// acquire() before it grows again. Of TokenHistory::settled tokens alone this is asked; several
// rows of a step may then share a slot, each a continuation of the one before. Sequence 0 is never
// remembered. Device thread.
class HistorySlots {
 public:
  // At least as many slots as a step has rows with penalties; `stride` tokens each.
  HistorySlots(uint32_t slots, uint32_t stride);

  // Once a step, before its first acquire(): every slot may be evicted again, oldest use first.
  void begin_step();
  [[nodiscard]] Result<HistoryUpload> acquire(const TokenHistory& history);
  // The token that the kernel has appended for a slot acquired in this step.
  void drawn(uint32_t slot, TokenId token);
  // The device's copy is no longer what this object believes, e.g. after a failed step.
  void forget();

 private:
  struct Slot {
    uint64_t sequence = 0;
    uint32_t known = 0;    // tokens on the device
    uint32_t settled = 0;  // of those, what the next step may count on
    TokenId last = 0;      // the one at known - 1, if the kernel appended it
    bool appended = false;
    uint64_t used = 0;  // step
  };
  [[nodiscard]] size_t free_slot() const;  // slots_.size(): none

  uint32_t stride_;
  uint64_t step_ = 1;
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, uint32_t> by_sequence_;
};

}  // namespace tandem::engine
