#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::transport {

// Which pages of a transfer were posted or came. Ranges are handled by words: they are asked about
// under mutexes that a transport's thread waits for.
class PageSet {
 public:
  explicit PageSet(size_t size = 0) : size_(size), words_((size + 63) / 64) {}

  [[nodiscard]] size_t size() const { return size_; }
  // Ranges lie within the set.
  [[nodiscard]] bool any(size_t first, size_t count) const {
    bool found = false;
    each(first, count, [&](size_t word, uint64_t mask) { found |= (words_[word] & mask) != 0; });
    return found;
  }
  void add(size_t first, size_t count) {
    each(first, count, [&](size_t word, uint64_t mask) { words_[word] |= mask; });
  }

 private:
  template <typename Visit>
  static void each(size_t first, size_t count, const Visit& visit) {
    while (count > 0) {
      const size_t bit = first % 64;
      const size_t here = std::min(64 - bit, count);
      visit(first / 64, ~uint64_t{0} >> (64 - here) << bit);
      first += here;
      count -= here;
    }
  }
  size_t size_;
  std::vector<uint64_t> words_;
};

}  // namespace tandem::transport
