#include "common/transport/shm/slot_ring.h"

#include <algorithm>

namespace tandem::transport {

std::optional<size_t> SlotRing::room_for(size_t bytes) const {
  if (slots_.empty()) return bytes <= capacity_ ? std::optional<size_t>(0) : std::nullopt;
  const size_t oldest = slots_.front().begin;
  const size_t end = slots_.back().begin + slots_.back().bytes;
  const bool wrapped = end <= oldest;
  if (bytes <= (wrapped ? oldest : capacity_) - end) return end;
  if (!wrapped && bytes <= oldest) return 0;
  return std::nullopt;
}

std::optional<SlotRing::Slot> SlotRing::take(size_t bytes) {
  const auto begin = room_for(bytes);
  if (!begin) return std::nullopt;
  slots_.push_back({.id = ++last_, .begin = *begin, .bytes = bytes});
  return slots_.back();
}

bool SlotRing::give_back(uint64_t id) {
  const auto slot = std::ranges::find(slots_, id, &Slot::id);
  if (slot == slots_.end() || slot->free) return false;
  slot->free = true;
  while (!slots_.empty() && slots_.front().free) slots_.pop_front();
  return true;
}

}  // namespace tandem::transport
