#include "common/transport/direct/slot_space.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace tandem::transport {
namespace {

size_t rounded(size_t bytes) {
  return (bytes + SlotSpace::kAlign - 1) / SlotSpace::kAlign * SlotSpace::kAlign;
}

}  // namespace

SlotSpace::SlotSpace(std::byte* memory, size_t bytes) : memory_(memory) {
  if (bytes >= kAlign) free_.emplace(0, bytes / kAlign * kAlign);
}

std::byte* SlotSpace::take(size_t bytes) {
  const size_t wanted = rounded(std::max<size_t>(bytes, 1));
  const auto fits = [&](const auto& range) { return range.second >= wanted; };
  const auto range = std::ranges::find_if(free_, fits);
  if (range == free_.end()) return nullptr;
  const auto [begin, size] = *range;
  free_.erase(range);
  if (size > wanted) free_.emplace(begin + wanted, size - wanted);
  taken_.emplace(begin, wanted);
  return memory_ + begin;
}

void SlotSpace::put(std::byte* slot) {
  const auto taken = taken_.find(static_cast<size_t>(slot - memory_));
  TANDEM_CHECK(taken != taken_.end(), "a slot that is not out was put back");
  auto [here, joined] = free_.insert(*taken);
  taken_.erase(taken);
  if (const auto after = std::next(here);
      after != free_.end() && here->first + here->second == after->first) {
    here->second += after->second;
    free_.erase(after);
  }
  if (here == free_.begin()) return;
  const auto before = std::prev(here);
  if (before->first + before->second != here->first) return;
  before->second += here->second;
  free_.erase(here);
}

std::byte* SlotSpace::split(std::byte* slot, size_t bytes) {
  const auto taken = taken_.find(place(slot));
  TANDEM_CHECK(taken != taken_.end() && bytes % kAlign == 0 && bytes < taken->second,
               "a slot cannot be split there");
  taken_.emplace(taken->first + bytes, taken->second - bytes);
  taken->second = bytes;
  return slot + bytes;
}

}  // namespace tandem::transport
