#include "common/engine/cuda/sampling/history_slots.h"

#include <algorithm>
#include <string>

namespace tandem::engine {

HistorySlots::HistorySlots(uint32_t slots, uint32_t stride) : stride_(stride), slots_(slots) {}

void HistorySlots::begin_step() { ++step_; }

size_t HistorySlots::free_slot() const {
  size_t best = slots_.size();
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].used != step_ && (best == slots_.size() || slots_[i].used < slots_[best].used))
      best = i;
  return best;
}

Result<HistoryUpload> HistorySlots::acquire(const TokenHistory& history) {
  const std::span<const TokenId> tokens = history.tokens;
  if (tokens.size() > stride_)
    return fail(ErrorCode::kInvalidArgument, "a history of " + std::to_string(tokens.size()) +
                                                 " tokens; the device has room for " +
                                                 std::to_string(stride_));
  size_t at = slots_.size();
  if (const auto found = by_sequence_.find(history.sequence);
      history.sequence != 0 && found != by_sequence_.end())
    at = found->second;
  if (at == slots_.size()) {
    at = free_slot();
    if (at == slots_.size())
      return fail(ErrorCode::kResourceExhausted, "every history slot is in use by this step");
    if (slots_[at].sequence != 0) by_sequence_.erase(slots_[at].sequence);
    slots_[at] = {};
    slots_[at].sequence = history.sequence;
    if (history.sequence != 0) by_sequence_[history.sequence] = static_cast<uint32_t>(at);
  }
  Slot& slot = slots_[at];
  if (slot.used != step_) slot.known = std::min(slot.known, slot.settled);
  slot.used = step_;
  uint32_t known = std::min(slot.known, static_cast<uint32_t>(tokens.size()));
  // What the kernel drew need not be what the sequence went on with.
  if (slot.appended && known == slot.known && tokens[known - 1] != slot.last) --known;
  slot.known = static_cast<uint32_t>(tokens.size());
  slot.settled =
      static_cast<uint32_t>(std::min(history.settled.value_or(slot.known), tokens.size()));
  slot.appended = false;
  return HistoryUpload{static_cast<uint32_t>(at), known, tokens.subspan(known)};
}

void HistorySlots::drawn(uint32_t index, TokenId token) {
  Slot& slot = slots_[index];
  if (slot.known >= stride_) return;  // nor did the kernel
  slot.settled = ++slot.known;
  slot.last = token;
  slot.appended = true;
}

void HistorySlots::forget() {
  by_sequence_.clear();
  for (Slot& slot : slots_) slot = {};
}

}  // namespace tandem::engine
