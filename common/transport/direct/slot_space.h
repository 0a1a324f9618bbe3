#pragma once

#include <cstddef>
#include <map>

namespace tandem::transport {

// Hands out ranges of one piece of memory, which it never touches, and takes them back in any
// order: the first that fits, and free neighbours join. So short messages, of which many must be
// under way, share memory with long ones, and a peer that keeps a range keeps that range only.
class SlotSpace {
 public:
  static constexpr size_t kAlign = 512;  // of every slot, when the memory's beginning is aligned so

  SlotSpace() = default;
  SlotSpace(std::byte* memory, size_t bytes);

  [[nodiscard]] std::byte* take(size_t bytes);  // null: no room until something is put back
  void put(std::byte* slot);                    // what take() gave
  // What lies behind the first `bytes` of a slot becomes a slot of its own, to be put back by
  // itself. `bytes` less than it has, and a multiple of kAlign.
  [[nodiscard]] std::byte* split(std::byte* slot, size_t bytes);
  [[nodiscard]] size_t place(const std::byte* slot) const {
    return static_cast<size_t>(slot - memory_);
  }

 private:
  std::byte* memory_ = nullptr;
  std::map<size_t, size_t> free_;   // bytes by where they begin
  std::map<size_t, size_t> taken_;  // likewise
};

}  // namespace tandem::transport
