#include "common/node/packing.h"

#include <algorithm>

#include "common/kv/layout.h"

namespace tandem::node {

std::vector<uint32_t> pack_rows(std::span<const uint32_t> remaining, const PackLimits& limits) {
  std::vector<uint32_t> rows(remaining.size(), 0);
  uint32_t left = limits.rows;
  for (size_t i = 0; i < remaining.size() && left > 0; ++i) {
    uint32_t take = std::min({remaining[i], limits.chunk, left});
    if (take < remaining[i]) take -= take % kv::kBlockTokens;
    rows[i] = take;
    left -= take;
  }
  return rows;
}

}  // namespace tandem::node
