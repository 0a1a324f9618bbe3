#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/engine/cuda/step_area.h"
#include "common/kv/layout.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_prefill.h"

namespace tandem::engine {

// What attention is planned for.
struct AttentionLimits {
  uint32_t heads = 0;
  kv::KvLayout layout;
  std::vector<uint32_t> windows;  // distinct ones of all layers
  uint32_t max_rows = 0;
  uint32_t max_context = 0;
  uint32_t max_sequences = 0;  // of a step
  FewRows few;                 // together: 0 or at least max_sequences
  uint32_t blocks = 0;         // the card's multiprocessors
  size_t l2_bytes = 0;
};

[[nodiscard]] cuda::DecodeShape decode_shape(const AttentionLimits& limits, uint32_t window);
[[nodiscard]] cuda::PrefillShape prefill_shape(const AttentionLimits& limits);

// Where everything that attention needs lies in one piece of device memory: byte offsets, each a
// multiple of 256. Pure.
struct AttentionLayout {
  AttentionLayout() = default;
  explicit AttentionLayout(const AttentionLimits& limits);

  // A decode plan: ranges, then units; one for each window.
  size_t plan_bytes = 0;
  size_t units_at = 0;        // within a plan
  size_t units = 0;           // at most
  std::vector<size_t> plans;  // in the order of AttentionLimits::windows
  size_t partials = 0;
  size_t counters = 0;  // the prefill kernel's two first, zeroed at start
  size_t counter_bytes = 0;
  // A prefill plan: sequences, then tiles.
  size_t prefill = 0;
  size_t prefill_bytes = 0;
  size_t tiles_at = 0;  // within it
  // Gathered keys and values, and those read exactly where the layout has open pages.
  uint32_t positions = 0;
  uint32_t exact_positions = 0;
  size_t keys = 0, values = 0;
  size_t exact_keys = 0, exact_values = 0;
  size_t kept = 0;
  size_t bytes = 0;  // of all

  static constexpr size_t kPrefillCounters = 64;  // before the decode kernel's
};

}  // namespace tandem::engine
