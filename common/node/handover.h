#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kv/layout.h"

namespace tandem::node {

// What travels from prefill to decode for a prompt of `tokens` tokens of which the decode node
// already holds the first `cached` (whole blocks). Both sides compute it from the same numbers.
struct Handover {
  uint32_t first_block = 0;  // of the prompt; block i of the transfer is block first_block + i
  uint32_t pages = 0;      // per layer; a half-filled last block counts unless it travels as a tail
  uint32_t tail_rows = 0;  // rows of the open page, which travels in tail format; 0: none does
};

[[nodiscard]] constexpr uint32_t blocks_for(size_t tokens) {
  return static_cast<uint32_t>((tokens + kv::kBlockTokens - 1) / kv::kBlockTokens);
}

// Whole blocks of a prompt that may come from a prefix index: at least the last token is left to
// do, so that there always is a row to sample from and a page to send.
[[nodiscard]] constexpr uint32_t reusable_tokens(size_t tokens) {
  if (tokens == 0) return 0;
  return static_cast<uint32_t>((tokens - 1) / kv::kBlockTokens * kv::kBlockTokens);
}

[[nodiscard]] inline Handover handover(const kv::KvLayout& layout, size_t tokens, uint32_t cached) {
  Handover h;
  h.first_block = cached / kv::kBlockTokens;
  if (layout.needs_tail()) h.tail_rows = static_cast<uint32_t>(tokens % kv::kBlockTokens);
  const uint32_t sent = blocks_for(tokens) - (h.tail_rows > 0 ? 1 : 0);
  h.pages = sent - std::min(sent, h.first_block);
  return h;
}

}  // namespace tandem::node
