#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace tandem::transport {

// Hands out contiguous ranges of a fixed space, about as a ring: the oldest come back first,
// mostly.
class SlotRing {
 public:
  explicit SlotRing(size_t capacity = 0) : capacity_(capacity) {}

  struct Slot {
    uint64_t id = 0;  // never 0, never used twice
    size_t begin = 0;
    size_t bytes = 0;
    bool free = false;  // waits for those before it
  };
  // Empty: no room until slots come back. `bytes` > 0.
  [[nodiscard]] std::optional<Slot> take(size_t bytes);
  // False: no such slot is out.
  [[nodiscard]] bool give_back(uint64_t id);
  [[nodiscard]] bool all_back() const { return slots_.empty(); }
  [[nodiscard]] size_t capacity() const { return capacity_; }
  // Another space, once all slots are back.
  void reset(size_t capacity) { capacity_ = capacity; }

 private:
  [[nodiscard]] std::optional<size_t> room_for(size_t bytes) const;
  size_t capacity_;
  std::deque<Slot> slots_;  // oldest first
  uint64_t last_ = 0;
};

}  // namespace tandem::transport
