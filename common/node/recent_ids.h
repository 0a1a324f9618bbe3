#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>

namespace tandem::node {

// The last `capacity` pairs that were added: recognises replays of what has already ended.
class RecentIds {
 public:
  using Key = std::pair<uint64_t, uint64_t>;

  explicit RecentIds(size_t capacity) : capacity_(capacity) {}

  void add(Key key) {
    if (!keys_.insert(key).second) return;
    order_.push_back(key);
    if (order_.size() > capacity_) {
      keys_.erase(order_.front());
      order_.pop_front();
    }
  }
  bool remove(Key key) {
    if (keys_.erase(key) == 0) return false;
    std::erase(order_, key);
    return true;
  }
  [[nodiscard]] bool contains(Key key) const { return keys_.contains(key); }
  void clear() {
    keys_.clear();
    order_.clear();
  }

 private:
  size_t capacity_;
  std::set<Key> keys_;
  std::deque<Key> order_;
};

}  // namespace tandem::node
