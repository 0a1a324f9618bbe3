#include "common/engine/cuda/attention_layout.h"

#include <algorithm>

#include "common/base/dtype.h"
#include "kernels/cuda/kv_write.h"

namespace tandem::engine {
namespace {

constexpr size_t kAlign = 256;
// Room for several short prompts in one gather beside the longest context.
constexpr uint32_t kShortPrompts = 64;

}  // namespace

cuda::DecodeShape decode_shape(const AttentionLimits& limits, uint32_t window) {
  const kv::KvLayout& layout = limits.layout;
  return {limits.heads, layout.kv_heads, layout.head_dim, window, layout.format};
}

cuda::PrefillShape prefill_shape(const AttentionLimits& limits) {
  return {limits.heads, limits.layout.kv_heads, limits.layout.head_dim};
}

AttentionLayout::AttentionLayout(const AttentionLimits& limits) {
  const auto place = [this](size_t size) {
    const size_t at = bytes;
    bytes += (size + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  const bool several = limits.few.each > 1;
  cuda::DecodeSteps steps;
  steps.sequences = limits.max_sequences;
  steps.sequence_rows = limits.few.each;
  steps.rows = several ? std::max(limits.few.together, limits.max_sequences) : limits.max_sequences;
  steps.blocks =
      cuda::decode_blocks(several ? limits.max_rows : limits.max_sequences, limits.blocks);
  steps.max_context = limits.max_context;
  size_t partial_bytes = 0;
  size_t decode_counters = 0;
  for (const uint32_t window : limits.windows) {
    const cuda::DecodeShape shape = decode_shape(limits, window);
    const cuda::DecodeLimits most = cuda::decode_limits(shape, steps);
    partial_bytes = std::max(partial_bytes, cuda::decode_partial_bytes(shape, most.partials));
    decode_counters = std::max(decode_counters, most.counters);
    units = std::max(units, most.units);
  }
  units_at = ((steps.blocks + 1) * sizeof(uint32_t) + 15) / 16 * 16;
  plan_bytes = units_at + units * sizeof(cuda::DecodeUnit);
  for (size_t i = 0; i < limits.windows.size(); ++i) plans.push_back(place(plan_bytes));
  partials = place(partial_bytes);
  counter_bytes = (kPrefillCounters + decode_counters) * sizeof(uint32_t);
  counters = place(counter_bytes);

  tiles_at = (limits.max_sequences * sizeof(cuda::PrefillSequence) + 15) / 16 * 16;
  prefill_bytes = tiles_at + cuda::prefill_max_tiles(prefill_shape(limits), limits.max_rows,
                                                     limits.max_sequences) *
                                 sizeof(cuda::PrefillTile);
  prefill = place(prefill_bytes);

  const kv::KvLayout& layout = limits.layout;
  const size_t row_bytes = size_t{layout.kv_heads} * layout.head_dim * sizeof(Bf16);
  positions = std::max(cuda::prefill_span(limits.max_context),
                       cuda::prefill_span(limits.max_rows) + kShortPrompts * cuda::kPrefillAlign);
  keys = place(positions * row_bytes);
  values = place(positions * row_bytes);
  if (!layout.needs_tail()) return;
  // Every sequence may begin with its page's last row and fill its span but for one position.
  exact_positions = cuda::prefill_span(
      limits.max_rows + limits.max_sequences * (kv::kBlockTokens + cuda::kPrefillAlign));
  exact_keys = place(exact_positions * row_bytes);
  exact_values = place(exact_positions * row_bytes);
  kept = place(cuda::kv_kept_bytes(layout, limits.max_sequences));
}

}  // namespace tandem::engine
