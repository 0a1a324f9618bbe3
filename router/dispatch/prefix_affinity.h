#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

namespace tandem::router {

// A bounded guess at which node holds which prefix: what was sent where lately. Wrong guesses cost
// time, never correctness. Nodes are slots 0 .. 63. Cluster thread.
class PrefixAffinity {
 public:
  static constexpr size_t kSlots = 64;

  explicit PrefixAffinity(size_t capacity);

  // Node `slot` has computed or received the blocks of `hashes`.
  void insert(std::span<const uint64_t> hashes, size_t slot);
  // Leading blocks of `hashes` that each slot probably holds.
  [[nodiscard]] std::array<uint32_t, kSlots> match(std::span<const uint64_t> hashes) const;
  void forget(size_t slot);
  [[nodiscard]] size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t slots = 0;  // bit per slot
    std::list<uint64_t>::iterator use;
  };
  const size_t capacity_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> recent_;  // most recently inserted first
};

}  // namespace tandem::router
