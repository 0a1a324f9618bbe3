#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/clock.h"

namespace tandem::node {

struct PackLimits {
  uint32_t rows = 0;   // of the whole step, at least one block
  uint32_t chunk = 0;  // of one prompt, at least one block
};

// Rows that each prompt gets in the next step. `remaining` is in FIFO order; every part that does
// not complete its prompt is a multiple of 16, so that chunks end with whole KV pages.
//
// The first prompt always advances, so nothing starves: rows that an earlier prompt cannot use go
// to later ones, never the other way round. A chunk limit below `rows` leaves room for short
// prompts behind a long one. Pure.
[[nodiscard]] std::vector<uint32_t> pack_rows(std::span<const uint32_t> remaining,
                                              const PackLimits& limits);

// Rows of prompts that a step of about `target` can hold at `rows_per_second`: whole pages, at
// least one and at most `limit`. A running step cannot be left, so its length bounds how late a
// cancellation or another request's next token may come. 0 rows per second: not known yet, a
// cautious guess.
[[nodiscard]] uint32_t rows_within(Duration target, double rows_per_second, uint32_t limit);

}  // namespace tandem::node
