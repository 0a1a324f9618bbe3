#include "router/dispatch/prefix_affinity.h"

#include <bit>

#include "common/base/check.h"

namespace tandem::router {

PrefixAffinity::PrefixAffinity(size_t capacity) : capacity_(capacity) {
  TANDEM_CHECK(capacity > 0, "the prefix index needs room");
}

void PrefixAffinity::insert(std::span<const uint64_t> hashes, size_t slot) {
  TANDEM_CHECK(slot < kSlots, "slot outside the prefix index");
  const uint64_t bit = 1ULL << slot;
  // Back to front, so that the first block of a prefix outlives its continuations.
  for (size_t i = hashes.size(); i-- > 0;) {
    auto [it, fresh] = entries_.try_emplace(hashes[i]);
    if (fresh) {
      recent_.push_front(hashes[i]);
      it->second.use = recent_.begin();
    } else {
      recent_.splice(recent_.begin(), recent_, it->second.use);
    }
    it->second.slots |= bit;
  }
  while (entries_.size() > capacity_) {
    entries_.erase(recent_.back());
    recent_.pop_back();
  }
}

std::array<uint32_t, PrefixAffinity::kSlots> PrefixAffinity::match(
    std::span<const uint64_t> hashes) const {
  std::array<uint32_t, kSlots> depth{};
  uint64_t alive = ~0ULL;
  for (uint32_t i = 0; i < hashes.size(); ++i) {
    const auto it = entries_.find(hashes[i]);
    const uint64_t next = it == entries_.end() ? 0 : alive & it->second.slots;
    for (uint64_t gone = i == 0 ? 0 : alive & ~next; gone != 0; gone &= gone - 1) {
      depth[static_cast<size_t>(std::countr_zero(gone))] = i;
    }
    alive = next;
    if (alive == 0) break;
  }
  for (uint64_t left = hashes.empty() ? 0 : alive; left != 0; left &= left - 1) {
    depth[static_cast<size_t>(std::countr_zero(left))] = static_cast<uint32_t>(hashes.size());
  }
  return depth;
}

void PrefixAffinity::forget(size_t slot) {
  const uint64_t bit = 1ULL << slot;
  for (auto it = entries_.begin(); it != entries_.end();) {
    it->second.slots &= ~bit;
    if (it->second.slots == 0) {
      recent_.erase(it->second.use);
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace tandem::router
