#pragma once

#include "common/cuda/arena_plan.h"
#include "common/cuda/device.h"
#include "common/cuda/memory.h"

namespace tandem::cuda {

// The one allocation of a card. Made at load, freed with its owner; spans never move.
class Arena {
 public:
  // `request` without device, total_bytes, free_bytes: these are asked of the card. KV memory is
  // zeroed, the rest is not. Blocks until it is.
  [[nodiscard]] static Result<Arena> create(const Device& device, ArenaRequest request);
  Arena() = default;

  [[nodiscard]] std::byte* part(size_t index) const { return at(plan_.parts[index]); }
  [[nodiscard]] std::byte* kv_pages() const { return at(plan_.kv_pages); }
  [[nodiscard]] std::byte* kv_tails() const { return at(plan_.kv_tails); }
  [[nodiscard]] const ArenaPlan& plan() const { return plan_; }
  [[nodiscard]] const std::string& description() const { return description_; }  // for the log

 private:
  [[nodiscard]] std::byte* at(const ArenaSpan& span) const { return memory_.data() + span.offset; }

  DeviceBuffer memory_;
  ArenaPlan plan_;
  std::string description_;
};

}  // namespace tandem::cuda
