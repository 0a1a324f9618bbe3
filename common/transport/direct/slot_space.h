#pragma once

#include <cstddef>
#include <map>

namespace tandem::transport {

// Hands out ranges of one piece of memory, which it never touches, and takes them back in any
// order: the first that fits, and free neighbours join. So short messages, of which many must be
// under way, share memory with long ones, and a peer that keeps a range keeps that range only.
class SlotSpace {
 public:
  SlotSpace() = default;
  SlotSpace(std::byte* memory, size_t bytes);

  [[nodiscard]] std::byte* take(size_t bytes);  // null: no room until something is put back
  void put(std::byte* slot);                    // what take() gave

 private:
  std::byte* memory_ = nullptr;
  std::map<size_t, size_t> free_;   // bytes by where they begin
  std::map<size_t, size_t> taken_;  // likewise
};

}  // namespace tandem::transport
