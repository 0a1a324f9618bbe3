#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/layout.h"

namespace tandem::kv {

// Re-encodes the first `rows` tokens of a page into another format of the same model: what `from`
// stores is decoded and encoded again as `to` says. Pages of equal layouts are copied byte for
// byte, whole. A part of a page (rows < 16) needs a target whose rows are coded alone; layouts with
// an open page keep it in their tail_layout(), which is.
void transcode_page(const KvLayout& from, const std::byte* source, const KvLayout& to,
                    std::byte* target, uint32_t rows);

}  // namespace tandem::kv
